// The store's client. It uses blocking sockets, so that a rank needs no event loop.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "launcher/protocol.h"
#include "launcher/store.h"

namespace trainctl {
namespace {

constexpr double kAnswerSeconds = 30;  ///< added to a get's timeout

constexpr int kAttempts = 3;

/// The connection is broken; a new one may work.
struct ConnectionLost : EnvError {
  using EnvError::EnvError;
};

[[noreturn]] void lost(const std::string& what) {
  throw EnvError("the launcher's store " + what + "; the launcher may have ended");
}

[[noreturn]] void lost_connection(const std::string& what) {
  throw ConnectionLost("the launcher's store " + what + "; the launcher may have ended");
}

[[noreturn]] void protocol_mismatch() {
  throw EnvError("the launcher's store: protocol mismatch: install the same version on all hosts");
}

void set_timeout(int fd, double seconds) {
  timeval time{};
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) lost_connection(std::string("cannot be written to: ") + std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

void receive_all(int fd, std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) lost_connection("closed the connection");
    if (got < 0 && errno == ECONNRESET) lost_connection("closed the connection");
    if (got < 0) lost(std::string("does not respond: ") + std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
}

std::string receive_frame(int fd, uint32_t limit) {
  std::array<char, 4> size{};
  receive_all(fd, size);
  const uint32_t bytes = store::parse_size(size);
  if (bytes > limit) lost("sent a frame of " + std::to_string(bytes) + " bytes");
  std::string body(bytes, '\0');
  receive_all(fd, body);
  return body;
}

void prove(int fd, const std::string& token) {
  const std::string hello = receive_frame(fd, store::kMaxHandshakeBytes);
  store::Nonce server_nonce{};
  if (hello.size() != server_nonce.size()) protocol_mismatch();
  std::copy(hello.begin(), hello.end(), server_nonce.begin());
  const store::Nonce client_nonce = store::random_nonce();
  const store::Mac mac = store::client_mac(token, server_nonce, client_nonce);
  std::string proof(client_nonce.data(), client_nonce.size());
  send_all(fd, store::frame(proof.append(mac.data(), mac.size())));
  const store::Mac expected = store::server_mac(token, server_nonce, client_nonce);
  if (!store::same(expected, receive_frame(fd, store::kMaxHandshakeBytes)))
    lost("did not prove that it has the job's token");
}

}  // namespace

StoreClient::StoreClient(uint16_t port, std::string token) : port_(port), token_(std::move(token)) {}

StoreClient::~StoreClient() { close_idle(); }

void StoreClient::close_idle() {
  const std::lock_guard lock(mutex_);
  for (const int fd : idle_) close(fd);
  idle_.clear();
}

void StoreClient::set(const std::string& key, const std::string& value) {
  check(key.size() <= store::kMaxKeyBytes && key.size() + value.size() + 16 <= store::kMaxFrameBytes,
        "keys and values of the store are small");
  call(store::encode(store::Request{store::Request::Kind::set, key, value, 0}), 0);
}

std::string StoreClient::get(const std::string& key, double timeout_seconds) {
  const double milliseconds = std::clamp(timeout_seconds * 1000, 0.0, 4e9);
  return call(store::encode(store::Request{store::Request::Kind::get, key, "", static_cast<uint32_t>(milliseconds)}),
              timeout_seconds);
}

/// Requests can be repeated: after a connection broke, the request is sent again over a new one.
std::string StoreClient::call(const std::string& request, double timeout_seconds) {
  for (int attempt = 1;; ++attempt) {
    try {
      return call_once(request, timeout_seconds);
    } catch (const ConnectionLost&) {
      if (attempt == kAttempts) throw;
      close_idle();
    }
  }
}

std::string StoreClient::call_once(const std::string& request, double timeout_seconds) {
  const int fd = take_connection();
  std::optional<store::Reply> reply;
  try {
    set_timeout(fd, timeout_seconds + kAnswerSeconds);
    send_all(fd, request);
    reply = store::parse_reply(receive_frame(fd, store::kMaxFrameBytes));
  } catch (...) {
    close(fd);
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(fd);
  }
  if (!reply) protocol_mismatch();
  if (!reply->found) throw EnvError("the launcher's store: " + reply->text);
  return reply->text;
}

int StoreClient::take_connection() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const int fd = idle_.back();
      idle_.pop_back();
      return fd;
    }
  }
  return connect_and_prove();
}

int StoreClient::connect_and_prove() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) lost(std::string("cannot be reached: ") + std::strerror(errno));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  try {
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      lost(std::string("cannot be reached: ") + std::strerror(errno));
    }
    set_timeout(fd, kAnswerSeconds);
    prove(fd, token_);
  } catch (...) {
    close(fd);
    throw;
  }
  return fd;
}

}  // namespace trainctl
