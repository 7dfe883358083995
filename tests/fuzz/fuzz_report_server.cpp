// libFuzzer target: any bytes are sent as a request to `trainctl report --serve`. The server answers with one complete
// HTTP response or closes the connection, and still serves its page afterwards.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <string>
#include <string_view>
#include <thread>

#include "cli/report/serve.h"
#include "tests/fuzz/interrupted_calls.h"

namespace {

using namespace trainctl;

/// One server for all inputs; it ends with the process.
uint16_t port_of_server() {
  static const uint16_t port = [] {
    static const Served served{[] { return std::string("the page"); }, [] { return std::string("{}"); }};
    std::promise<uint16_t> ready;
    std::thread([&ready] { serve_page(0, served, [&ready](uint16_t number) { ready.set_value(number); }); }).detach();
    return ready.get_future().get();
  }();
  return port;
}

std::string answer_to(std::string_view request) {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in to{
      .sin_family = AF_INET, .sin_port = htons(port_of_server()), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  connect_or_abort(made, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  uninterrupted([&] { return send(made, request.data(), request.size(), MSG_NOSIGNAL); });
  shutdown(made, SHUT_WR);
  std::string answer;
  std::array<char, 4096> bytes{};
  for (ssize_t got; (got = uninterrupted([&] { return recv(made, bytes.data(), bytes.size(), 0); })) > 0;)
    answer.append(bytes.data(), static_cast<size_t>(got));
  close(made);
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string answer = answer_to({reinterpret_cast<const char*>(data), size});
  if (!answer.empty() && !answer.starts_with("HTTP/1.1 ")) std::abort();
  if (!answer_to("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").ends_with("the page")) std::abort();
  return 0;
}
