// Tests of the server of `trainctl report`: what it answers, what it refuses, and that no client delays another.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <thread>

#include "cli/report/serve.h"
#include "tests/cli/command.h"

using namespace trainctl;

namespace {

/// A connection to a server on this host.
int connected(uint16_t port) {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(made, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  return made;
}

/// The answer of a server of reports on this host, until it closes the connection.
std::string answer_of(uint16_t port, const std::string& request) {
  const int made = connected(port);
  REQUIRE(send(made, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
  std::string answer;
  for (char byte = 0; recv(made, &byte, 1, 0) == 1;) answer += byte;
  close(made);
  return answer;
}

/// A server of reports in a thread.
class ReportServer {
 public:
  ReportServer() {
    std::promise<uint16_t> ready;
    thread_ = std::thread([&ready] {
      serve_page(0, {[] { return std::string("page"); }, [] { return std::string("{}"); }},
                 [&ready](uint16_t number) { ready.set_value(number); });
    });
    port = ready.get_future().get();
  }
  ~ReportServer() {
    kill(getpid(), SIGTERM);
    thread_.join();
  }
  uint16_t port = 0;

 private:
  std::thread thread_;
};

}  // namespace

TEST_CASE("a request without a header Host is refused, whatever follows its end, and so is one to another host") {
  const ReportServer server;
  CHECK(answer_of(server.port, "GET / HTTP/1.1\r\n\r\n\r\nhost:").starts_with("HTTP/1.1 403"));
  CHECK(answer_of(server.port, "GET / HTTP/1.1\r\n\r\n\r\nhost: localhost\r\n\r\n").starts_with("HTTP/1.1 403"));
  for (const char* host : {"example.com", "localhost.example.com", "127.0.0.1.example.com:80"})
    CHECK(answer_of(server.port, fmt::format("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host)).starts_with("HTTP/1.1 403"));
  for (const char* host : {"localhost", "LocalHost:8000", "127.0.0.1:8000"})
    CHECK(answer_of(server.port, fmt::format("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host)).ends_with("\r\n\r\npage"));
}

TEST_CASE("the server of reports has a page and its data, and no other path or method") {
  const ReportServer server;
  const auto answer = [&](const char* line) {
    return answer_of(server.port, fmt::format("{} HTTP/1.1\r\nHost: localhost\r\n\r\n", line));
  };
  const std::string data = answer("GET /data");
  CHECK(data.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(contains(data, "\r\nContent-Type: application/json; charset=utf-8\r\n"));
  CHECK(contains(data, "\r\nContent-Length: 2\r\n"));
  CHECK(contains(data, "\r\nConnection: close\r\n"));
  CHECK(data.ends_with("\r\n\r\n{}"));
  for (const char* line : {"GET /other", "GET /data/", "GET /../data", "POST /", "DELETE /data"})
    CHECK(answer(line).starts_with("HTTP/1.1 404"));
}

TEST_CASE("a request that is damaged or too large has no answer, and a silent client delays no other") {
  const ReportServer server;
  const int silent = connected(server.port);
  CHECK(answer_of(server.port, "this is no request\r\n\r\n").empty());
  CHECK(answer_of(server.port, "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n")
            .empty());
  CHECK(answer_of(server.port, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").ends_with("\r\n\r\npage"));
  close(silent);
}
