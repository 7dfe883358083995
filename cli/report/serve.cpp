// Serves a page and its data over HTTP on 127.0.0.1, with Boost.Beast; each connection has one request.
#include "cli/report/serve.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <csignal>
#include <memory>

#include "engine/base/error.h"
#include "launcher/newcomers.h"
#include "launcher/signals.h"

namespace trainctl {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Request = http::request<http::empty_body>;
using Response = http::response<http::string_body>;

constexpr uint32_t kMostRequestBytes = 16384;  ///< largest request line with its headers
constexpr auto kExchangePatience = std::chrono::seconds(10);
constexpr auto kAcceptRetry = std::chrono::milliseconds(50);

Response response(http::status status, std::string_view type, std::string body) {
  Response made(status, 11, std::move(body));
  made.set(http::field::content_type, fmt::format("{}; charset=utf-8", type));
  made.set(http::field::cache_control, "no-store");
  made.keep_alive(false);
  made.prepare_payload();
  return made;
}

bool names_this_host(const Request& request) {
  const beast::string_view host = request[http::field::host];
  const beast::string_view name = host.substr(0, host.rfind(':'));
  return name == "127.0.0.1" || beast::iequals(name, "localhost");
}

Response respond(const Request& request, const Served& served) {
  if (!names_this_host(request))
    return response(http::status::forbidden, "text/plain", "this server only accepts requests from this host\n");
  try {
    if (request.method() == http::verb::get && request.target() == "/")
      return response(http::status::ok, "text/html", served.page());
    if (request.method() == http::verb::get && request.target() == "/data")
      return response(http::status::ok, "application/json", served.data());
  } catch (const std::exception& error) {
    return response(http::status::internal_server_error, "text/plain", error.what());
  }
  return response(http::status::not_found, "text/plain", "not found; available paths: / and /data\n");
}

/// One request and its response. It owns itself until both have ended, or their time has.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(tcp::socket socket, const Served& served) : stream_(std::move(socket)), served_(served) {
    parser_.header_limit(kMostRequestBytes);
  }

  void start() {
    stream_.expires_after(kExchangePatience);
    http::async_read_header(stream_, buffer_, parser_,
                            [self = shared_from_this()](const beast::error_code& error, size_t) {
                              if (!error) self->reply();
                            });
  }

  void close() { stream_.close(); }

 private:
  void reply() {
    response_ = respond(parser_.get(), served_);
    http::async_write(stream_, response_, [self = shared_from_this()](const beast::error_code&, size_t) {
      beast::error_code ignored;
      self->stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMostRequestBytes};
  http::request_parser<http::empty_body> parser_;
  Response response_;
  const Served& served_;
};

/// Accepts connections. Clients do not authenticate, so every connection counts as an unauthenticated peer.
struct Readers {
  tcp::acceptor& acceptor;
  const Served& served;
  asio::steady_timer retry{acceptor.get_executor()};
  Newcomers<Exchange> exchanges{};

  void accept() {
    acceptor.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) return accept_later();
      const auto exchange = std::make_shared<Exchange>(std::move(socket), served);
      exchanges.add(exchange);
      exchange->start();
      accept();
    });
  }

  /// Retries after a lack of descriptors.
  void accept_later() {
    retry.expires_after(kAcceptRetry);
    retry.async_wait([this](const boost::system::error_code& error) {
      if (!error) accept();
    });
  }
};

}  // namespace

void serve_page(uint16_t port, const Served& served, const std::function<void(uint16_t)>& ready) {
  asio::io_context loop;
  tcp::acceptor acceptor(loop);
  const tcp::endpoint place(asio::ip::address_v4::loopback(), port);
  boost::system::error_code error;
  acceptor.open(place.protocol());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  acceptor.bind(place, error);
  if (error) throw EnvError(fmt::format("cannot serve on 127.0.0.1:{}: {}", port, error.message()));
  acceptor.listen();
  asio::signal_set signals(loop);
  for (const int number : heeded({SIGINT, SIGTERM, SIGHUP})) signals.add(number);
  signals.async_wait([&](const boost::system::error_code&, int) { loop.stop(); });
  Readers readers{acceptor, served};
  readers.accept();
  ready(acceptor.local_endpoint().port());
  loop.run();
}

}  // namespace trainctl
