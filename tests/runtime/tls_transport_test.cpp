// Tests of ranks that use TLS, against attacks by unauthenticated peers and against failures of the network.
#include "engine/runtime/comm/tls_transport.h"

#include <doctest/doctest.h>
#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/tls_impostor.h"

using namespace trainctl;

namespace {

constexpr std::chrono::milliseconds kTlsTransportPatience{30000};

/// One of two connected ranks: the device and context that it needs to reach the other.
struct End {
  explicit End(int rank, const std::string& token)
      : device(comm::make_tls_device({.hostname = "127.0.0.1", .token = token})),
        context(device->createContext(rank, 2)) {
    std::signal(SIGPIPE, SIG_IGN);
    context->setTimeout(kTlsTransportPatience);
    context->createPair(1 - rank);
  }
  gloo::transport::Pair& pair() const { return *context->getPair(1 - context->rank); }
  std::vector<char> address() const { return pair().address().bytes(); }

  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::transport::Context> context;
};

sockaddr_in socket_address(const std::vector<char>& address) {
  sockaddr_in found{};
  std::memcpy(&found, address.data(), sizeof found);
  return found;
}

int dial(const sockaddr_in& address) {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return made;
}

/// Connects the ranks: rank 0 dials rank 1 at `address`.
void connect_ends(const End& zero, const End& one, const std::vector<char>& address) {
  std::thread other([&] { one.pair().connect(zero.address()); });
  try {
    zero.pair().connect(address);
  } catch (...) {
    one.pair().close();
    other.join();
    throw;
  }
  other.join();
}

/// Sends data from `sender`, and returns the data that the other rank received.
std::vector<char> carry(const End& sender, const End& receiver, std::vector<char> sent, uint64_t slot = 7) {
  std::vector<char> got(sent.size(), 'x');
  const auto from = sender.context->createUnboundBuffer(sent.data(), sent.size());
  const auto to = receiver.context->createUnboundBuffer(got.data(), got.size());
  to->recv(sender.context->rank, slot);
  from->send(receiver.context->rank, slot);
  to->waitRecv(kTlsTransportPatience);
  from->waitSend(kTlsTransportPatience);
  return got;
}

std::vector<char> pattern(size_t bytes, unsigned salt) {
  std::vector<char> made(bytes);
  for (size_t i = 0; i < bytes; ++i) made[i] = static_cast<char>((i * 2654435761u + salt) >> 11);
  return made;
}

/// A connection between two ranks that sees, and may change, each byte that comes from the rank that dials.
class Wire {
 public:
  using Touch = std::function<void(char* bytes, size_t count)>;
  Wire(const std::vector<char>& address, Touch touch) : to_(socket_address(address)), touch_(std::move(touch)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in here{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof here;
    REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&here), size) == 0);
    REQUIRE(listen(listener_, 1) == 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&here), &size);
    address_ = address;
    std::memcpy(address_.data(), &here, sizeof here);
    thread_ = std::thread([this] { run(); });
  }
  ~Wire() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  const std::vector<char>& address() const { return address_; }  ///< the other end's, by this wire

 private:
  void run() {
    const int in = accept(listener_, nullptr, nullptr);
    if (in < 0) return;
    const int out = dial(to_);
    std::vector<char> bytes(1 << 16);
    for (bool open = true; open;) {
      pollfd ready[2] = {{in, POLLIN, 0}, {out, POLLIN, 0}};
      poll(ready, 2, -1);
      for (int side = 0; side < 2 && open; ++side) {
        if (ready[side].revents == 0) continue;
        const ssize_t got = read(ready[side].fd, bytes.data(), bytes.size());
        if (got > 0 && side == 0) touch_(bytes.data(), static_cast<size_t>(got));
        ssize_t put = 0;
        while (got > 0 && put >= 0 && put < got) {
          const ssize_t now = write(side == 0 ? out : in, bytes.data() + put, static_cast<size_t>(got - put));
          put = now < 0 ? -1 : put + now;
        }
        open = got > 0 && put == got;
      }
    }
    close(in);
    close(out);
  }

  sockaddr_in to_;
  Touch touch_;
  int listener_ = -1;
  std::vector<char> address_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("tls: messages of any size arrive whole, in both directions at once") {
  const End zero(0, "token"), one(1, "token");
  connect_ends(zero, one, one.address());
  unsigned salt = 0;
  for (const size_t bytes : {size_t{1}, size_t{24}, size_t{16359}, size_t{16360}, size_t{16361}, size_t{5 << 20}}) {
    std::vector<char> there = pattern(bytes, ++salt), back = pattern(bytes, ++salt);
    std::vector<char> got_there(bytes), got_back(bytes);
    const auto a = zero.context->createUnboundBuffer(there.data(), bytes);
    const auto b = one.context->createUnboundBuffer(back.data(), bytes);
    const auto c = zero.context->createUnboundBuffer(got_back.data(), bytes);
    const auto d = one.context->createUnboundBuffer(got_there.data(), bytes);
    a->send(1, salt);  // before it is asked for
    c->recv(1, salt);
    d->recv(0, salt);
    b->send(0, salt);
    for (const auto* sender : {&a, &b}) (*sender)->waitSend(kTlsTransportPatience);
    for (const auto* receiver : {&c, &d}) (*receiver)->waitRecv(kTlsTransportPatience);
    CHECK(got_there == there);
    CHECK(got_back == back);
  }
}

TEST_CASE("tls: an eavesdropper cannot read the data") {
  const End zero(0, "token"), one(1, "token");
  std::string seen;
  {
    const Wire wire(one.address(), [&](const char* bytes, size_t count) { seen.append(bytes, count); });
    connect_ends(zero, one, wire.address());
    const std::string words = "the weights of the first layer";
    const std::vector<char> sent(words.begin(), words.end());
    CHECK(carry(zero, one, sent) == sent);
    zero.pair().close();
    one.pair().close();
  }
  CHECK(seen.size() > 30);
  CHECK(seen.find("weights") == std::string::npos);
}

TEST_CASE("tls: a byte changed in transit is an error on both sides, and never a wrong number") {
  const End zero(0, "token"), one(1, "token");
  std::atomic<bool> changes = false;
  const Wire wire(one.address(), [&](char* bytes, size_t count) {
    if (changes) bytes[count - 1] ^= 1;
  });
  connect_ends(zero, one, wire.address());
  std::vector<char> sent = pattern(100000, 1), got(sent.size());
  const auto to = one.context->createUnboundBuffer(got.data(), got.size());
  const auto from = zero.context->createUnboundBuffer(sent.data(), sent.size());
  to->recv(0, 7);
  changes = true;
  try {
    from->send(1, 7);
  } catch (const gloo::IoException&) {  // the receiver closed the connection before all was sent
  }
  CHECK_THROWS_AS(to->waitRecv(kTlsTransportPatience), gloo::IoException);
  // The sender's next message finds the connection closed.
  std::vector<char> answer(1);
  const auto back = zero.context->createUnboundBuffer(answer.data(), answer.size());
  CHECK_THROWS_AS((back->recv(1, 8), back->waitRecv(kTlsTransportPatience)), gloo::IoException);
}

TEST_CASE("tls: a rank of another run is refused, and the right one still gets its link") {
  const End zero(0, "token"), one(1, "token"), other(0, "another token");
  CHECK_THROWS_WITH_AS(other.pair().connect(one.address()), doctest::Contains("no TLS connection to rank 1"),
                       gloo::IoException);
  connect_ends(zero, one, one.address());
  const std::vector<char> sent = pattern(1000, 3);
  CHECK(carry(zero, one, sent) == sent);
}

TEST_CASE("tls: unauthenticated peers that send nothing, or anything else, delay no rank") {
  const End zero(0, "token"), one(1, "token");
  std::vector<int> unknown;
  for (int i = 0; i < 100; ++i) {
    unknown.push_back(dial(socket_address(one.address())));
    const std::string words = i % 3 == 0 ? "" : i % 3 == 1 ? "GET / HTTP/1.1\r\n\r\n" : std::string(100000, '\x16');
    if (!words.empty()) CHECK(send(unknown.back(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0);
  }
  connect_ends(zero, one, one.address());
  const std::vector<char> sent = pattern(1000, 4);
  CHECK(carry(zero, one, sent) == sent);
  for (const int fd : unknown) close(fd);
}

TEST_CASE("tls: a rank sends nothing to a listener that has a certificate but not the token") {
  const End zero(0, "token"), one(1, "token");
  TlsImpostor impostor;
  std::vector<char> address = one.address();
  sockaddr_in there = socket_address(address);
  there.sin_port = htons(static_cast<uint16_t>(impostor.port()));
  std::memcpy(address.data(), &there, sizeof there);
  CHECK_THROWS_WITH_AS(zero.pair().connect(address), doctest::Contains("no TLS connection to rank 1"),
                       gloo::IoException);
  CHECK(impostor.heard() == "");
  CHECK(impostor.clients() >= 1);
}

TEST_CASE("tls: more idle connections than a rank keeps open do not delay its peers") {
  const End zero(0, "token"), one(1, "token");
  zero.context->setTimeout(std::chrono::seconds(5));  // shorter than the time that an idle connection is given
  std::vector<int> idle;
  for (int i = 0; i < 400; ++i) idle.push_back(dial(socket_address(one.address())));
  connect_ends(zero, one, one.address());
  char byte = 0;
  CHECK(recv(idle.front(), &byte, 1, 0) <= 0);  // the oldest has been closed
  for (const int fd : idle) close(fd);
}

TEST_CASE("tls: a message that is sent before it is asked for in another size fails on both ranks") {
  const End zero(0, "token"), one(1, "token");
  connect_ends(zero, one, one.address());
  std::vector<char> sent(8), got(16);
  const auto from = zero.context->createUnboundBuffer(sent.data(), sent.size());
  const auto to = one.context->createUnboundBuffer(got.data(), got.size());
  from->send(1, 7);
  to->recv(0, 7);
  CHECK_THROWS_WITH_AS(from->waitSend(kTlsTransportPatience),
                       doctest::Contains("the sizes of a message differ: 8 "
                                         "bytes"),
                       gloo::IoException);
  CHECK_THROWS_WITH_AS(to->waitRecv(kTlsTransportPatience),
                       doctest::Contains("Connection to rank 0 of the group failed"), gloo::IoException);
}

TEST_CASE("tls: a message that is sent after it was asked for in another size fails on both ranks") {
  const End zero(0, "token"), one(1, "token");
  connect_ends(zero, one, one.address());
  std::vector<char> sent(8), got(16);
  const auto from = zero.context->createUnboundBuffer(sent.data(), sent.size());
  const auto to = one.context->createUnboundBuffer(got.data(), got.size());
  to->recv(0, 7);
  CHECK(carry(one, zero, pattern(10, 1), 8) == pattern(10, 1));  // and before it, rank 0 has got what rank 1 asks for
  CHECK_THROWS_WITH_AS(from->send(1, 7), doctest::Contains("16 bytes on one side"), gloo::IoException);
  CHECK_THROWS_WITH_AS(to->waitRecv(kTlsTransportPatience),
                       doctest::Contains("Connection to rank 0 of the group failed"), gloo::IoException);
}

TEST_CASE("tls: a wait for a peer that is gone ends at once, with an error that names it") {
  const End zero(0, "token");
  auto one = std::make_unique<End>(1, "token");
  connect_ends(zero, *one, one->address());
  std::vector<char> got(10);
  const auto to = zero.context->createUnboundBuffer(got.data(), got.size());
  to->recv(1, 1);
  one.reset();
  CHECK_THROWS_WITH_AS(to->waitRecv(kTlsTransportPatience),
                       doctest::Contains("Connection to rank 1 of the group failed"), gloo::IoException);
}
