// libFuzzer target: a rank receives any bytes over TLS from a peer that has the job's token, after any bytes from a
// client without it, while it sends and receives on other threads. Each operation of the rank completes, or throws as
// soon as the peer has closed the connection. None waits for its timeout, and no buffer is accessed after it was freed.
//
//   input := operations count stranger[count] step*        operations: two bits per slot, an Operation
//   step  := kind slot size        one byte each; kind 0 asks, 1 sends, 2 sends less than announced,
//                                  3 sends the two bytes raw
#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/tls_stream.h"
#include "engine/runtime/comm/tls_transport.h"
#include "tests/fuzz/interrupted_calls.h"

namespace {

using namespace trainctl;

constexpr std::string_view kToken = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
constexpr std::chrono::milliseconds kPatience{60'000};  // must be longer than libFuzzer's -timeout
constexpr size_t kNameBytes = 16;
constexpr std::array<size_t, 4> kSizes = {0, 1, 24, 20'000};
enum Operation : uint8_t { kNothing, kSend, kReceive, kReceiveAndGiveUp };

/// Reads the bytes of an input from the front; beyond its end all bytes are 0.
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

int dial(const std::vector<char>& address) {
  sockaddr_in to{};
  std::memcpy(&to, address.data(), sizeof to);
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  connect_or_abort(made, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  return made;
}

void be_unauthenticated_peer(const std::vector<char>& address, std::string_view bytes) {
  const int made = dial(address);
  uninterrupted([&] { return ::send(made, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
  close(made);
}

std::string header(uint64_t kind, uint64_t slot, uint64_t bytes) {
  const std::array<uint64_t, 3> words = {kind, slot, bytes};
  return {reinterpret_cast<const char*>(words.data()), sizeof words};
}

std::string next_step(Bytes& input) {
  const uint8_t kind = input.next() % 4, slot = input.next(), size = input.next();
  const size_t bytes = kSizes[size % kSizes.size()];
  if (kind == 0) return header(1, slot % 4, bytes);
  if (kind == 1) return header(2, slot % 4, bytes) + std::string(bytes, 's');
  if (kind == 2) return header(2, slot % 4, bytes) + std::string(bytes / 2, 's');
  return {static_cast<char>(slot), static_cast<char>(size)};
}

/// On a busy machine the rank may close a connection whose handshake takes long.
std::unique_ptr<TlsStream> connect_to_rank(const std::vector<char>& address) {
  for (;;) {
    try {
      return TlsStream::connect(dial(address), std::string(kToken), 30);
    } catch (const EnvError&) {
      std::this_thread::yield();
    }
  }
}

void be_peer(const std::vector<char>& address, std::string_view name, Bytes input) {
  const auto stream = connect_to_rank(address);
  try {
    stream->write(name);
    while (!input.empty()) stream->write(next_step(input));
  } catch (const EnvError&) {
    // The rank has closed the connection.
  }
}

void finish(gloo::transport::UnboundBuffer& buffer, bool sends) {
  try {
    sends ? buffer.waitSend(kPatience) : buffer.waitRecv(kPatience);
  } catch (const gloo::IoException& error) {
    if (std::string_view(error.what()).find("Timed out") != std::string_view::npos) std::abort();
  }
}

void operate(gloo::transport::Context& context, Operation operation, size_t slot) {
  if (operation == kNothing) return;
  std::vector<char> memory(kSizes[slot], 'r');
  const auto buffer = context.createUnboundBuffer(memory.data(), memory.size());
  try {
    operation == kSend ? buffer->send(0, slot) : buffer->recv(0, slot);
  } catch (const gloo::IoException&) {
    return;  // the link has failed already
  }
  if (operation != kReceiveAndGiveUp) finish(*buffer, operation == kSend);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::signal(SIGPIPE, SIG_IGN);
  // OpenSSL's cleanup at exit follows the end of the device's thread, whose error queue would be a leak otherwise.
  static const int is_initialized = OPENSSL_init_ssl(0, nullptr);
  static const auto device = comm::make_tls_device({.hostname = "127.0.0.1", .token = std::string(kToken)});
  if (is_initialized == 0) std::abort();
  Bytes input({reinterpret_cast<const char*>(data), size});
  const uint8_t operations = input.next();
  const std::string_view stranger = input.take(input.next());
  const auto context = device->createContext(1, 2);
  context->setTimeout(kPatience);
  context->createPair(0);
  gloo::transport::Pair& pair = *context->getPair(0);
  const std::vector<char> address = pair.address().bytes();
  const std::string_view name(address.data() + sizeof(sockaddr_storage) + sizeof(uint64_t), kNameBytes);
  if (!stranger.empty()) be_unauthenticated_peer(address, stranger);
  std::thread peer([&] { be_peer(address, name, input); });
  pair.connect(address);  // waits for the peer, which dials
  std::vector<std::thread> threads;
  for (size_t slot = 0; slot < kSizes.size(); ++slot)
    threads.emplace_back([&, slot] { operate(*context, static_cast<Operation>(operations >> (2 * slot) & 3), slot); });
  for (std::thread& thread : threads) thread.join();
  peer.join();
  return 0;
}
