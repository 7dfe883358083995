// libFuzzer target: a real store gets any bytes as requests of a client with the job's token, after any bytes of a
// client without it, while it serves two other clients on other threads. These two read back what they have set.
//
//   input := count stranger[count] request*        request := kind key size value[size]
//   kind 0 sets, 1 gets, 2 is a frame with these bytes, 3 are these bytes without a frame
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "engine/base/error.h"
#include "launcher/protocol.h"
#include "launcher/store.h"
#include "tests/fuzz/interrupted_calls.h"

namespace {

using namespace trainctl;

const std::string kToken(64, 't');

/// The bytes of an input, from the front. At the end all are 0.
class Bytes {
 public:
  explicit Bytes(std::string_view left) : left_(left) {}
  bool empty() const { return left_.empty(); }
  uint8_t next() { return left_.empty() ? 0 : static_cast<uint8_t>(take(1)[0]); }
  std::string_view take(size_t count) {
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view left_;
};

class Connection {
 public:
  explicit Connection(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in to{
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    connect_or_abort(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(fd_); }

  void send(std::string_view bytes) const {
    uninterrupted([&] { return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
  }
  /// A frame's body; shorter if the store has closed the connection.
  std::string receive() const {
    std::array<char, 4> size{};
    if (!fill(size)) return "";
    std::string body(store::parse_size(size), '\0');
    return fill(body) ? body : "";
  }

 private:
  bool fill(std::span<char> bytes) const {
    while (!bytes.empty()) {
      const ssize_t got = uninterrupted([&] { return recv(fd_, bytes.data(), bytes.size(), 0); });
      if (got <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(got));
    }
    return true;
  }

  int fd_;
};

void prove(const Connection& connection) {
  const std::string hello = connection.receive();
  store::Nonce theirs{};
  const store::Nonce mine{};
  if (hello.size() != theirs.size()) std::abort();
  std::copy(hello.begin(), hello.end(), theirs.begin());
  const store::Mac mac = store::client_mac(kToken, theirs, mine);
  connection.send(store::frame(std::string(mine.begin(), mine.end()) + std::string(mac.begin(), mac.end())));
  if (connection.receive().size() != sizeof(store::Mac)) std::abort();
}

std::string next_request(Bytes& input) {
  const uint8_t kind = input.next() % 4;
  const std::string key(1, static_cast<char>(input.next()));
  const std::string value(input.take(input.next()));
  if (kind == 0) return store::encode({.kind = store::Request::Kind::set, .key = key, .value = value});
  if (kind == 1) return store::encode({.kind = store::Request::Kind::get, .key = key, .value = "", .timeout_ms = 1});
  return kind == 2 ? store::frame(value) : value;
}

void be_hostile(uint16_t port, Bytes input) {
  if (const std::string_view stranger = input.take(input.next()); !stranger.empty()) Connection(port).send(stranger);
  const Connection connection(port);
  prove(connection);
  while (!input.empty()) connection.send(next_request(input));
}

void be_client(StoreClient& client, const std::string& key) {
  for (int i = 0; i < 3; ++i) {
    const std::string value(static_cast<size_t>(i) * 1000, 'v');
    client.set(key, value);
    if (client.get(key, 60) != value) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  boost::asio::io_context loop;
  size_t sets = 0;  // of the loop's thread
  std::optional<StoreServer> server;
  server.emplace(loop, kToken, [&](const std::string&, const std::string&) { ++sets; });
  const uint16_t port = server->port();
  std::thread serving([&] { loop.run(); });
  {
    StoreClient client(port, kToken);
    std::thread one([&] { be_client(client, "first client"); });
    std::thread other([&] { be_client(client, "second client"); });
    be_hostile(port, Bytes({reinterpret_cast<const char*>(data), size}));
    one.join();
    other.join();
  }
  boost::asio::post(loop, [&] {
    server.reset();
    loop.stop();
  });
  serving.join();
  if (sets < 6) std::abort();
  return 0;
}
