// The part of HTTP/1.1 that a browser needs: GET, with one connection per request.
#include "cli/report/serve.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cctype>
#include <chrono>
#include <csignal>
#include <memory>

#include "engine/base/error.h"
#include "launcher/newcomers.h"
#include "launcher/signals.h"

namespace trainctl {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr size_t kMostRequestBytes = 16384;  ///< largest request, in bytes
constexpr auto kRequestPatience = std::chrono::seconds(10);
constexpr auto kAcceptRetry = std::chrono::milliseconds(50);

std::string answer(std::string_view status, std::string_view type, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "Connection: close\r\n\r\n{}",
      status, type, body.size(), body);
}

/// The value of a header, in lower case; "" if there is none. Bytes that follow the head of the request are ignored.
std::string header(const std::string& request, const std::string& name) {
  std::string head = request.substr(0, request.find("\r\n\r\n") + 2);
  for (char& c : head) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const size_t at = head.find("\r\n" + name + ":");
  if (at == std::string::npos) return "";
  const size_t begin = head.find_first_not_of(' ', at + name.size() + 3);
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

bool names_this_host(const std::string& request) {
  const std::string host = header(request, "host");
  const std::string name = host.substr(0, host.rfind(':'));
  return name == "127.0.0.1" || name == "localhost";
}

std::string respond(const std::string& request, const Served& served) {
  if (!names_this_host(request))
    return answer("403 Forbidden", "text/plain", "this server only accepts requests from this host\n");
  const std::string line = request.substr(0, request.find("\r\n"));
  try {
    if (line.starts_with("GET / ")) return answer("200 OK", "text/html", served.page());
    if (line.starts_with("GET /data ")) return answer("200 OK", "application/json", served.data());
  } catch (const std::exception& error) {
    return answer("500 Internal Server Error", "text/plain", error.what());
  }
  return answer("404 Not Found", "text/plain", "not found; available paths: / and /data\n");
}

/// One request and its response. It owns itself until both have ended.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(tcp::socket socket, const Served& served)
      : socket_(std::move(socket)), deadline_(socket_.get_executor()), served_(served) {}

  void start() {
    auto self = shared_from_this();
    deadline_.expires_after(kRequestPatience);
    deadline_.async_wait([self](const boost::system::error_code& error) {
      if (!error) self->close();
    });
    asio::async_read_until(socket_, asio::dynamic_buffer(request_, kMostRequestBytes), "\r\n\r\n",
                           [self](const boost::system::error_code& error, size_t) {
                             if (!error) self->reply();
                           });
  }

  void close() {
    boost::system::error_code ignored;
    deadline_.cancel();
    socket_.close(ignored);
  }

 private:
  void reply() {
    auto self = shared_from_this();
    reply_ = respond(request_, served_);
    asio::async_write(socket_, asio::buffer(reply_), [self](const boost::system::error_code&, size_t) {
      boost::system::error_code ignored;
      self->socket_.shutdown(tcp::socket::shutdown_both, ignored);
      self->deadline_.cancel();
    });
  }

  tcp::socket socket_;
  asio::steady_timer deadline_;
  const Served& served_;
  std::string request_, reply_;
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
