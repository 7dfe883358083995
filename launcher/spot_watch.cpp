// Polls the metadata service of a cloud for notices that this host will be reclaimed (launch.spot_notices).
// Requests are HTTP/1.0, so that a response ends with its connection.
#include "launcher/spot_watch.h"

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

namespace trainctl {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Json = nlohmann::json;

constexpr auto kPollInterval = std::chrono::seconds(5);  // AWS advises 5 s for its notice of 120 s; Azure's is 30 s
constexpr auto kResponseTime = std::chrono::seconds(4);
constexpr size_t kMostNoticeBytes = size_t{1} << 20;
constexpr const char* kMetadataAddress = "169.254.169.254:80";

struct Request {
  std::string line;     ///< "GET /path"
  std::string headers;  ///< each with its end of line
};

struct Response {
  int status = 0;  ///< 0: there is none
  std::string body;
};

Response parse_response(const std::string& text) {
  Response response;
  const size_t space = text.find(' '), end = text.find("\r\n\r\n");
  if (!text.starts_with("HTTP/") || space == std::string::npos || end == std::string::npos) return response;
  response.status = std::atoi(text.c_str() + space + 1);
  response.body = text.substr(end + 4);
  return response;
}

/// One request; ends after kResponseTime at the latest.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  using Done = std::function<void(const Response&)>;
  explicit Exchange(asio::io_context& loop) : resolver_(loop), socket_(loop), timer_(loop) {}

  void start(const std::string& address, const Request& request, Done done) {
    done_ = std::move(done);
    text_ = request.line + " HTTP/1.0\r\nHost: " + address + "\r\n" + request.headers +
            (request.line.starts_with("PUT") ? "Content-Length: 0\r\n" : "") + "\r\n";
    const size_t colon = address.rfind(':');
    timer_.expires_after(kResponseTime);
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->finish();
    });
    resolver_.async_resolve(address.substr(0, colon), address.substr(colon + 1),
                            [self = shared_from_this()](const auto& error, const auto& found) {
                              if (error) return self->finish();
                              self->connect(found);
                            });
  }

 private:
  void connect(const tcp::resolver::results_type& found) {
    asio::async_connect(socket_, found, [self = shared_from_this()](const auto& error, const auto&) {
      if (error) return self->finish();
      asio::async_write(self->socket_, asio::buffer(self->text_), [self](const auto& failed, size_t) {
        if (failed) return self->finish();
        self->read();
      });
    });
  }
  void read() {
    asio::async_read(socket_, asio::dynamic_buffer(received_, kMostNoticeBytes),
                     [self = shared_from_this()](const auto& error, size_t) {
                       if (error == asio::error::eof) self->response_ = parse_response(self->received_);
                       self->finish();
                     });
  }
  void finish() {
    if (!done_) return;
    const Done done = std::exchange(done_, {});
    timer_.cancel();
    resolver_.cancel();
    boost::system::error_code ignored;
    socket_.close(ignored);
    done(response_);
  }

  tcp::resolver resolver_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  std::string text_, received_;
  Response response_;
  Done done_;
};

std::string notice_text(const Json& json, const char* field) {
  return json.is_object() && json.contains(field) && json[field].is_string() ? json[field].get<std::string>() : "";
}

std::string azure_notice(const Json& json, std::string_view host) {
  if (!json.is_object() || !json.contains("Events") || !json["Events"].is_array()) return "";
  for (const Json& event : json["Events"]) {
    const std::string type = notice_text(event, "EventType");
    if (type != "Preempt" && type != "Terminate") continue;
    const Json resources = event.value("Resources", Json::array());
    const bool is_of_host = host.empty() || std::any_of(resources.begin(), resources.end(), [&](const Json& name) {
                              return name.is_string() && name.get<std::string>() == host;
                            });
    if (is_of_host) return type + " not before " + notice_text(event, "NotBefore");
  }
  return "";
}

}  // namespace

std::string spot_notice(SpotNotices notices, std::string_view body, std::string_view host) {
  if (notices == SpotNotices::gcp) return body.starts_with("TRUE") ? "preempted" : "";
  const Json json = Json::parse(body, nullptr, false);
  if (notices == SpotNotices::azure) return azure_notice(json, host);
  const std::string action = notice_text(json, "action");
  return action.empty() ? "" : action + " at " + notice_text(json, "time");
}

class SpotWatch::Poll : public std::enable_shared_from_this<Poll> {
 public:
  Poll(asio::io_context& loop, SpotSettings settings, Report on_notice, Report on_silence)
      : loop_(loop),
        settings_(std::move(settings)),
        on_notice_(std::move(on_notice)),
        on_silence_(std::move(on_silence)),
        timer_(loop) {
    if (settings_.address.empty()) settings_.address = kMetadataAddress;
  }

  void ask() {
    switch (settings_.notices) {
      case SpotNotices::none:
        return;
      case SpotNotices::aws:
        return ask_aws();
      case SpotNotices::gcp:
        return ask_for("/computeMetadata/v1/instance/preempted", "Metadata-Flavor: Google\r\n");
      case SpotNotices::azure:
        return ask_azure();
    }
  }

  void stop() {
    ended_ = true;
    timer_.cancel();
  }

 private:
  void send(Request request, void (Poll::*then)(const Response&)) {
    std::make_shared<Exchange>(loop_)->start(settings_.address, request,
                                             [weak = weak_from_this(), then](const Response& response) {
                                               if (const auto self = weak.lock(); self && !self->ended_)
                                                 (*self.*then)(response);
                                             });
  }

  /// The token of IMDSv2 expires, so each question asks for one.
  void ask_aws() { send({"PUT /latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 60\r\n"}, &Poll::take_token); }
  void take_token(const Response& response) {
    if (response.status != 200) return answered(response);
    std::string token = response.body;
    token.erase(token.find_last_not_of("\r\n ") + 1);
    ask_for("/latest/meta-data/spot/instance-action", "X-aws-ec2-metadata-token: " + token + "\r\n");
  }
  void ask_azure() {
    if (!host_.empty()) return ask_for_events();
    send({"GET /metadata/instance/compute/name?api-version=2021-02-01&format=text", "Metadata: true\r\n"},
         &Poll::take_name);
  }
  void take_name(const Response& response) {
    if (response.status == 200) host_ = response.body;
    ask_for_events();
  }
  void ask_for_events() { ask_for("/metadata/scheduledevents?api-version=2020-07-01", "Metadata: true\r\n"); }
  void ask_for(const std::string& path, std::string headers) {
    send({"GET " + path, std::move(headers)}, &Poll::answered);
  }

  void answered(const Response& response) {
    const std::string notice =
        response.status == 200 ? spot_notice(settings_.notices, response.body, host_) : std::string();
    if (!notice.empty()) {
      ended_ = true;
      return on_notice_(notice);
    }
    // AWS has no such document as long as there is no notice.
    const bool is_answer = response.status == 200 || (settings_.notices == SpotNotices::aws && response.status == 404);
    if (!is_answer && !std::exchange(is_silent_, true))
      on_silence_(
          "the metadata service at " + settings_.address +
          (response.status == 0 ? " does not answer" : " answers with status " + std::to_string(response.status)) +
          "; spot notices cannot be received until it does");
    timer_.expires_after(kPollInterval);
    timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      if (const auto self = weak.lock(); self && !error && !self->ended_) self->ask();
    });
  }

  asio::io_context& loop_;
  SpotSettings settings_;
  Report on_notice_, on_silence_;
  asio::steady_timer timer_;
  std::string host_;
  bool ended_ = false, is_silent_ = false;
};

SpotWatch::SpotWatch(asio::io_context& loop, const SpotSettings& settings, Report on_notice, Report on_silence)
    : poll_(std::make_shared<Poll>(loop, settings, std::move(on_notice), std::move(on_silence))) {
  poll_->ask();
}

SpotWatch::~SpotWatch() { poll_->stop(); }

}  // namespace trainctl
