// Tests of the store and its protocol over real sockets.
#include "launcher/store.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/packaged_task.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "launcher/protocol.h"

using namespace trainctl;

namespace {

/// A server with its event loop on a separate thread.
class Server {
 public:
  explicit Server(std::string token = "secret") : store_(loop_, std::move(token)), thread_([this] { loop_.run(); }) {}
  ~Server() {
    loop_.stop();
    thread_.join();
  }
  uint16_t port() const { return store_.port(); }
  /// Sets a key. Returns false if the store is full.
  bool put(const std::string& key, std::string value) {
    return boost::asio::post(loop_, std::packaged_task<bool()>([&] { return store_.put(key, std::move(value)); }))
        .get();
  }

 private:
  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{loop_.get_executor()};
  StoreServer store_;
  std::thread thread_;
};

/// A client that sends arbitrary bytes.
class RawSocket {
 public:
  explicit RawSocket(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;
  ~RawSocket() { close(fd_); }
  void send_text(const std::string& text) const { (void)!::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  /// Returns all bytes until the server closes the connection, but at most `most`.
  std::string receive(size_t most = SIZE_MAX) const {
    std::string all;
    char byte = 0;
    while (all.size() < most && recv(fd_, &byte, 1, 0) == 1) all += byte;
    return all;
  }

 private:
  int fd_;
};

/// The descriptors of this process that are the server's ends of connections.
int connections_of(uint16_t port) {
  int count = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in here{}, peer{};
    socklen_t size = sizeof here, peer_size = sizeof peer;
    const bool is_connected = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0;
    if (is_connected && getsockname(fd, reinterpret_cast<sockaddr*>(&here), &size) == 0 && here.sin_port == htons(port))
      ++count;
  }
  return count;
}

/// Shuts every connection of this process to the port, like a failing network. Returns their number.
int shut_connections_to(uint16_t port) {
  int count = 0;
  for (int fd = 3; fd < 256; ++fd) {
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.sin_port != htons(port)) continue;
    shutdown(fd, SHUT_RDWR);
    ++count;
  }
  return count;
}

constexpr size_t kHelloBytes = 4 + 32;

}  // namespace

TEST_CASE("a value that one client sets is returned to another") {
  const Server server;
  StoreClient a(server.port(), "secret"), b(server.port(), "secret");
  const std::string value("bytes\0and\nmore", 14);
  a.set("key", value);
  CHECK(b.get("key", 5) == value);
  a.set("key", "");
  CHECK(b.get("key", 5).empty());
}

TEST_CASE("a get waits for its key, and the same client's other calls continue meanwhile") {
  const Server server;
  StoreClient client(server.port(), "secret");
  std::string got;
  std::thread waiter([&] { got = client.get("late", 30); });
  client.set("other", "x");
  CHECK(client.get("other", 5) == "x");
  client.set("late", "here");
  waiter.join();
  CHECK(got == "here");
}

TEST_CASE("getting a key that is never set fails in time, with an error that names the key") {
  const Server server;
  StoreClient client(server.port(), "secret");
  try {
    client.get("rank.7.address", 0.05);
    FAIL("the key is not there");
  } catch (const EnvError& error) {
    CHECK(std::string(error.what()).find("rank.7.address") != std::string::npos);
  }
  client.set("a", "b");  // the connection is still good
  CHECK(client.get("a", 1) == "b");
}

TEST_CASE("a call survives a broken connection by opening a new one") {
  const Server server;
  StoreClient client(server.port(), "secret");
  client.set("key", "value");
  CHECK(shut_connections_to(server.port()) == 1);
  CHECK(client.get("key", 5) == "value");
  std::string late;
  std::thread waiting([&] { late = client.get("late", 60); });
  while (shut_connections_to(server.port()) == 0) std::this_thread::yield();  // in the middle of a call
  client.set("late", "came");
  waiting.join();
  CHECK(late == "came");
}

TEST_CASE("a key that a full store refused is not stored") {
  Server server;
  CHECK(server.put("large", std::string(size_t{256} << 20, 'x')));
  CHECK_FALSE(server.put("key", "x"));
  CHECK_THROWS_WITH_AS(StoreClient(server.port(), "secret").get("key", 0), doctest::Contains("no rank has set 'key'"),
                       EnvError);
  CHECK(server.put("large", ""));
  CHECK(server.put("key", "x"));
}

TEST_CASE("many clients set and get values at the same time") {
  const Server server;
  std::vector<std::thread> ranks;
  std::atomic<int> right{0};
  for (int rank = 0; rank < 16; ++rank) {
    ranks.emplace_back([&, rank] {
      StoreClient client(server.port(), "secret");
      client.set("rank." + std::to_string(rank), std::string(static_cast<size_t>(1000 * rank), 'x'));
      for (int other = 0; other < 16; ++other) {
        right += client.get("rank." + std::to_string(other), 30).size() == static_cast<size_t>(1000 * other) ? 1 : 0;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(right == 16 * 16);
}

TEST_CASE("a client with another token is refused, and a server with another token too") {
  const Server server;
  StoreClient peer(server.port(), "guess");
  CHECK_THROWS_AS(peer.get("key", 1), EnvError);
  CHECK_THROWS_AS(peer.set("key", "value"), EnvError);
}

TEST_CASE("a client without a proof learns only a nonce") {
  const Server server;
  StoreClient(server.port(), "secret").set("key", "the secret value");
  for (const std::string& attack :
       {store::encode(store::Request{store::Request::Kind::get, "key", "", 100}), store::frame(std::string(64, '\0')),
        store::frame(""), std::string("\xff\xff\xff\xff", 4) + std::string(100, 'x'),
        std::string("GET / HTTP/1.1\r\n\r\n")}) {
    const RawSocket socket(server.port());
    socket.send_text(attack);
    CHECK(socket.receive().size() == kHelloBytes);
  }
}

/// An impostor that listens like a store: it sends a hello, and answers the proof by echoing what it has received.
class ImpostorStore {
 public:
  ImpostorStore() : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&here), size) == 0);
    REQUIRE(listen(listener_, 8) == 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&here), &size);
    port_ = ntohs(here.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~ImpostorStore() {
    end();
    close(listener_);
  }
  uint16_t port() const { return port_; }
  const std::string& heard() {
    end();
    return heard_;
  }

 private:
  void end() {
    shutdown(listener_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  void serve() {
    for (int client; (client = accept(listener_, nullptr, nullptr)) >= 0; close(client)) {
      const std::string hello = store::frame(std::string(32, 'n'));
      if (send(client, hello.data(), hello.size(), MSG_NOSIGNAL) < 0) continue;
      std::string proof;
      char byte = 0;
      while (proof.size() < 68 && recv(client, &byte, 1, 0) == 1) proof += byte;
      heard_ += proof;
      const std::string welcome = store::frame(proof.substr(std::min<size_t>(36, proof.size())));
      (void)!send(client, welcome.data(), welcome.size(), MSG_NOSIGNAL);
      while (recv(client, &byte, 1, 0) == 1) heard_ += byte;
    }
  }

  int listener_;
  uint16_t port_ = 0;
  std::string heard_;
  std::thread thread_;
};

TEST_CASE("a store without the token gets a proof that it cannot use, and no request") {
  ImpostorStore impostor;
  StoreClient client(impostor.port(), "secret");
  CHECK_THROWS_WITH_AS(client.set("the key", "the value"),
                       doctest::Contains("did not prove that it has the job's token"), EnvError);
  const std::string heard = impostor.heard();
  CHECK(heard.size() == 68);  // a nonce and a digest
  for (const char* word : {"secret", "the key", "the value"}) CHECK(heard.find(word) == std::string::npos);
}

TEST_CASE("connections without a proof leave the launcher its descriptors, and the oldest is closed for a new one") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const Server server;
  std::vector<std::unique_ptr<RawSocket>> idle;
  for (int i = 0; i < 100; ++i) idle.push_back(std::make_unique<RawSocket>(server.port()));
  const rlimit low{320, before.rlim_max};  // of which a quarter may be such connections
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  CHECK(idle.front()->receive(kHelloBytes).size() == kHelloBytes);
  RawSocket one_more(server.port());
  CHECK(one_more.receive(kHelloBytes).size() == kHelloBytes);  // the server has accepted it
  CHECK(connections_of(server.port()) <= 80);
  CHECK(idle.front()->receive().empty());  // it has been closed
  StoreClient client(server.port(), "secret");
  client.set("key", "value");
  CHECK(client.get("key", 5) == "value");
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("nonces do not repeat, so a proof cannot be replayed") {
  const Server server;
  CHECK(RawSocket(server.port()).receive(kHelloBytes) != RawSocket(server.port()).receive(kHelloBytes));
}

TEST_CASE("after the welcome, a frame that is too large or malformed closes the connection") {
  const Server server;
  for (const std::string& bad : {store::frame("what?"), store::frame("S\x05"), std::string("\x01\x00\x10\x00", 4)}) {
    const RawSocket socket(server.port());
    const std::string hello = socket.receive(kHelloBytes);
    store::Nonce server_nonce{};
    std::copy(hello.begin() + 4, hello.end(), server_nonce.begin());
    const store::Nonce nonce = store::random_nonce();
    const store::Mac mac = store::client_mac("secret", server_nonce, nonce);
    socket.send_text(store::frame(std::string(nonce.begin(), nonce.end()) + std::string(mac.begin(), mac.end())));
    CHECK(socket.receive(kHelloBytes).size() == kHelloBytes);  // the welcome
    socket.send_text(bad);
    CHECK(socket.receive().empty());
  }
}

TEST_CASE("an unreachable store is an error of the environment") {
  uint16_t port = 0;
  {
    const Server server;
    port = server.port();
  }
  StoreClient client(port, "secret");
  CHECK_THROWS_AS(client.set("a", "b"), EnvError);
}

TEST_CASE("requests are decoded as they were encoded") {
  using store::Request;
  for (const Request& request :
       {Request{Request::Kind::set, "k", "value", 0}, Request{Request::Kind::get, "key", "", 70000},
        Request{Request::Kind::set, std::string(1024, 'k'), "", 0}}) {
    const std::string bytes = store::encode(request);
    CHECK(store::parse_size(std::span<const char, 4>(bytes.data(), 4)) == bytes.size() - 4);
    const auto parsed = store::parse_request(std::string_view(bytes).substr(4));
    REQUIRE(parsed.has_value());
    CHECK(parsed->kind == request.kind);
    CHECK(parsed->key == request.key);
    CHECK(parsed->value == request.value);
    CHECK(parsed->timeout_ms == request.timeout_ms);
  }
}

TEST_CASE("requests that are truncated, or have no key or one that is too long, are rejected") {
  const std::string bytes = store::encode(store::Request{store::Request::Kind::get, "key", "", 5}).substr(4);
  for (size_t size = 0; size < bytes.size(); ++size)
    CHECK_FALSE(store::parse_request(bytes.substr(0, size)).has_value());
  CHECK_FALSE(store::parse_request(bytes + "x").has_value());  // a get has no value
  CHECK_FALSE(store::parse_request(std::string("S\0\0value", 8)).has_value());
  CHECK_FALSE(store::parse_request("S\xff\xff" + std::string(70000, 'k')).has_value());
}
