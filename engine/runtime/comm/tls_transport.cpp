// A transport of Gloo whose links are TLS 1.3 connections: third parties can neither read nor change messages between
// ranks of different hosts, and peers without the token of the job get no link.
#include "engine/runtime/comm/tls_transport.h"

#include <fmt/format.h>
#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <type_traits>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/base/open_files.h"
#include "engine/runtime/comm/tls_link.h"

namespace trainctl::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr double kHandshakeSeconds = 10;
/// The most connections that have not yet proved that they have the token. If there are more, the oldest is closed.
constexpr size_t kMaxUnauthenticated = 256;
constexpr int kBacklog = 1024;
/// The number of times that a rank dials, since its connection may be closed for the reason above before its handshake
/// is done.
constexpr int kDialAttempts = 3;
constexpr milliseconds kNap{10};

/// Address and name of a link, for the rank that dials. Peers receive it through the store.
struct Place {
  sockaddr_storage address;
  uint64_t address_bytes;
  std::array<char, 16> name;
};
static_assert(std::is_trivially_copyable_v<Place> && sizeof(Place) <= gloo::transport::Address::kMaxByteSize);

std::string text_of(const sockaddr_storage& address, socklen_t bytes) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int error = getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, host.data(), host.size(),
                                port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  return error == 0 ? fmt::format("[{}]:{}", host.data(), port.data()) : "an unknown address";
}

/// Returns the address of the named host, with port 0.
std::pair<sockaddr_storage, socklen_t> own_address(const std::string& hostname) {
  const addrinfo hints{.ai_flags = 0, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error = getaddrinfo(hostname.c_str(), nullptr, &hints, &found);
  if (error != 0) throw EnvError(fmt::format("cannot listen on host '{}': {}", hostname, gai_strerror(error)));
  sockaddr_storage address{};
  const socklen_t bytes = found->ai_addrlen;
  std::memcpy(&address, found->ai_addr, bytes);
  freeaddrinfo(found);
  return {address, bytes};
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {
    if (number_ < 0) throw EnvError(std::string("no socket: ") + std::strerror(errno));
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

void send_at_once(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Listens for the links of one rank, and handles their sockets on a separate thread.
class TlsDevice : public gloo::transport::Device, public SocketWatcher, public std::enable_shared_from_this<TlsDevice> {
 public:
  explicit TlsDevice(const TlsDeviceOptions& options);
  ~TlsDevice() override;

  std::string str() const override { return "tls " + text_of(address_, address_bytes_); }
  const std::string& getPCIBusID() const override { return no_bus_; }
  std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override;

  const std::string& token() const { return token_; }
  /// Returns a link that others may dial by the name in `place` until it is removed.
  std::shared_ptr<TlsLink> add_link(int peer, Place& place);
  void remove_link(const TlsLink& link);

  void watch(int socket, uint64_t key, bool writes) override;

 private:
  struct UnauthenticatedPeer {
    std::unique_ptr<TlsStream> stream;
    Clock::time_point deadline;
    std::array<char, 16> name{};
    size_t named = 0;  ///< bytes of the link's name that have arrived
    bool is_authenticated = false;
  };
  struct Named {
    std::array<char, 16> name;
    std::shared_ptr<TlsLink> link;
  };
  static constexpr uint64_t kWake = 0, kListener = 1, kFirstKey = 2;

  void run();
  void accept_some();
  /// Returns false once the peer is authenticated.
  bool serve_unauthenticated(uint64_t key, UnauthenticatedPeer& peer);
  /// Closes the oldest unauthenticated peer. Returns false, and closes none, if all peers turn out to be authenticated.
  bool close_oldest_unauthenticated();
  std::shared_ptr<TlsLink> link_named(const std::array<char, 16>& name);
  std::shared_ptr<TlsLink> link_of(uint64_t key);
  void set_events(int socket, uint64_t key, uint32_t events);

  const std::string token_, no_bus_;
  sockaddr_storage address_{};
  socklen_t address_bytes_ = 0;
  Descriptor epoll_{epoll_create1(EPOLL_CLOEXEC)}, wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::optional<Descriptor> listener_;

  std::mutex mutex_;
  bool ends_ = false;
  uint64_t next_key_ = kFirstKey;
  std::unordered_map<uint64_t, Named> links_;

  std::map<uint64_t, UnauthenticatedPeer>
      unauthenticated_;  ///< used only by the loop's thread; the oldest has the lowest key
  std::thread loop_;
};

class TlsContext : public gloo::transport::Context, public std::enable_shared_from_this<TlsContext> {
 public:
  TlsContext(std::shared_ptr<TlsDevice> device, int its_rank, int its_size)
      : gloo::transport::Context(its_rank, its_size), device_(std::move(device)) {}
  ~TlsContext() override { pairs_.clear(); }  // pairs need the device, so they are destroyed first
  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override;
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, size_t bytes) override;
  TlsDevice& device() { return *device_; }
  TlsLink& link(int peer);
  void forget(const TlsBuffer& buffer);

 private:
  std::shared_ptr<TlsDevice> device_;
};

class LinkAddress : public gloo::transport::Address {
 public:
  explicit LinkAddress(const Place& place) : place_(place) {}
  std::string str() const override { return text_of(place_.address, static_cast<socklen_t>(place_.address_bytes)); }
  std::vector<char> bytes() const override {
    std::vector<char> bytes(sizeof place_);
    std::memcpy(bytes.data(), &place_, sizeof place_);
    return bytes;
  }

 private:
  Place place_;
};

class ContextBuffer : public TlsBuffer {
 public:
  ContextBuffer(std::shared_ptr<TlsContext> context, void* data, size_t bytes)
      : TlsBuffer(data, bytes), context_(std::move(context)) {}
  ~ContextBuffer() override { context_->forget(*this); }

  void send(int peer, uint64_t slot, size_t offset, size_t bytes) override {
    context_->link(peer).send(*this, slot, at(offset), size_of(offset, bytes));
  }
  void recv(int peer, uint64_t slot, size_t offset, size_t bytes) override {
    context_->link(peer).recv(*this, slot, at(offset), size_of(offset, bytes));
  }
  void recv(std::vector<int> peers, uint64_t slot, size_t offset, size_t bytes) override {
    if (peers.size() != 1) throw gloo::InvalidOperationException("over TLS, a receive must name one sender");
    recv(peers.front(), slot, offset, bytes);
  }

 protected:
  milliseconds default_timeout() const override { return context_->getTimeout(); }

 private:
  char* at(size_t offset) const { return static_cast<char*>(ptr) + offset; }
  size_t size_of(size_t offset, size_t bytes) const { return bytes == kUnspecifiedByteCount ? size - offset : bytes; }

  std::shared_ptr<TlsContext> context_;
};

class TlsPair : public gloo::transport::Pair {
 public:
  TlsPair(TlsContext& context, int peer)
      : context_(context), peer_(peer), link_(context.device().add_link(peer, place_)), address_(place_) {}
  ~TlsPair() override { close_link(); }

  const gloo::transport::Address& address() const override { return address_; }
  void connect(const std::vector<char>& bytes) override;
  void close() override { close_link(); }
  void setSync(bool, bool) override {}
  std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void*, size_t) override { throw no_bound_buffers(); }
  std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void*, size_t) override { throw no_bound_buffers(); }
  void send(gloo::transport::UnboundBuffer* buffer, uint64_t slot, size_t offset, size_t bytes) override {
    buffer->send(peer_, slot, offset, bytes);
  }
  void recv(gloo::transport::UnboundBuffer* buffer, uint64_t slot, size_t offset, size_t bytes) override {
    buffer->recv(peer_, slot, offset, bytes);
  }
  TlsLink& link() { return *link_; }

 private:
  static gloo::InvalidOperationException no_bound_buffers() {
    return gloo::InvalidOperationException("only unbound buffers are supported over TLS");
  }
  void close_link() {
    context_.device().remove_link(*link_);
    link_->close();
  }

  TlsContext& context_;
  int peer_;
  Place place_{};
  std::shared_ptr<TlsLink> link_;
  LinkAddress address_;
};

TlsDevice::TlsDevice(const TlsDeviceOptions& options) : token_(options.token) {
  check(!token_.empty(), "TLS between ranks needs a token");
  std::tie(address_, address_bytes_) = own_address(options.hostname);
  listener_.emplace(socket(address_.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  auto* address = reinterpret_cast<sockaddr*>(&address_);
  if (bind(listener_->get(), address, address_bytes_) != 0 || listen(listener_->get(), kBacklog) != 0 ||
      getsockname(listener_->get(), address, &address_bytes_) != 0)
    throw EnvError(fmt::format("cannot listen on host '{}': {}", options.hostname, std::strerror(errno)));
  set_events(wake_.get(), kWake, EPOLLIN);
  set_events(listener_->get(), kListener, EPOLLIN);
  loop_ = std::thread([this] { run(); });
}

TlsDevice::~TlsDevice() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  const uint64_t one = 1;
  check(::write(wake_.get(), &one, sizeof one) == sizeof one, "a write to an eventfd must succeed");
  loop_.join();
}

void TlsDevice::set_events(int socket, uint64_t key, uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = key}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket, &event) == 0) return;
  if (errno != ENOENT || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) != 0)
    throw EnvError(std::string("a socket cannot be watched: ") + std::strerror(errno));
}

void TlsDevice::watch(int socket, uint64_t key, bool writes) {
  set_events(socket, key, writes ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

std::shared_ptr<TlsLink> TlsDevice::add_link(int peer, Place& place) {
  place.address = address_;
  place.address_bytes = address_bytes_;
  check(getrandom(place.name.data(), place.name.size(), 0) == static_cast<ssize_t>(place.name.size()),
        "getrandom must return random bytes");
  const std::lock_guard lock(mutex_);
  const uint64_t key = next_key_++;
  auto link = std::make_shared<TlsLink>(*this, key, peer);
  links_.emplace(key, Named{place.name, link});
  return link;
}

void TlsDevice::remove_link(const TlsLink& link) {
  const std::lock_guard lock(mutex_);
  links_.erase(link.key());
}

std::shared_ptr<TlsLink> TlsDevice::link_of(uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = links_.find(key);
  return found == links_.end() ? nullptr : found->second.link;
}

std::shared_ptr<TlsLink> TlsDevice::link_named(const std::array<char, 16>& name) {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, named] : links_)
    if (named.name == name) return named.link;
  return nullptr;
}

/// Accepts the connections that wait, up to the limit of unauthenticated peers, and starts their handshakes.
void TlsDevice::accept_some() {
  const size_t most = most_unauthenticated(kMaxUnauthenticated);
  for (size_t accepted = 0; accepted < most; ++accepted) {
    const int socket = accept4(listener_->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
      // No connection is left, or it was closed again. Without descriptors or memory it stays in the queue.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) std::this_thread::sleep_for(kNap);
      return;
    }
    while (unauthenticated_.size() >= most && close_oldest_unauthenticated()) {
    }
    send_at_once(socket);
    uint64_t key = 0;
    {
      const std::lock_guard lock(mutex_);
      key = next_key_++;
    }
    const auto seconds = std::chrono::duration<double>(kHandshakeSeconds);
    unauthenticated_[key] = {.stream = TlsStream::start(socket, token_, true),
                             .deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds)};
    try {
      set_events(socket, key, EPOLLIN);
    } catch (const EnvError&) {
      unauthenticated_.erase(key);  // the kernel has no room to watch it
    }
  }
}

/// Checks the oldest peer once more before closing it: its proof may have arrived while other connections were
/// accepted.
bool TlsDevice::close_oldest_unauthenticated() {
  const auto has_no_proof = [](const auto& one) { return !one.second.is_authenticated; };
  const auto oldest = std::find_if(unauthenticated_.begin(), unauthenticated_.end(), has_no_proof);
  if (oldest == unauthenticated_.end()) return false;
  if (!serve_unauthenticated(oldest->first, oldest->second) || !oldest->second.is_authenticated)
    unauthenticated_.erase(oldest);
  return true;
}

/// Continues the handshake of a peer, then reads the name of the link that it asks for. Returns false if the peer must
/// go.
bool TlsDevice::serve_unauthenticated(uint64_t key, UnauthenticatedPeer& peer) {
  try {
    if (!peer.is_authenticated) peer.is_authenticated = peer.stream->try_handshake();
    while (peer.is_authenticated && peer.named < peer.name.size()) {
      const size_t got = peer.stream->try_read(std::span(peer.name).subspan(peer.named));
      if (got == 0) break;
      peer.named += got;
    }
  } catch (const EnvError&) {
    return false;  // the peer does not have the token
  }
  if (peer.named < peer.name.size()) {
    watch(peer.stream->socket(), key, peer.stream->waits_to_write());
    return true;
  }
  if (const std::shared_ptr<TlsLink> link = link_named(peer.name)) link->adopt(std::move(peer.stream));
  return false;
}

/// The loop of the device's thread: waits for sockets that are ready, and serves them.
void TlsDevice::run() {
  std::array<epoll_event, 64> events{};
  for (;;) {
    const int wait_ms = unauthenticated_.empty() ? -1 : 1000;
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms);
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[static_cast<size_t>(i)].data.u64;
      if (key == kWake) {
        const std::lock_guard lock(mutex_);
        if (ends_) return;
      } else if (key == kListener) {
        accept_some();
      } else if (const auto found = unauthenticated_.find(key); found != unauthenticated_.end()) {
        if (!serve_unauthenticated(key, found->second)) unauthenticated_.erase(found);
      } else if (const std::shared_ptr<TlsLink> link = link_of(key)) {
        link->serve();
      }
    }
    const auto now = Clock::now();
    std::erase_if(unauthenticated_, [now](const auto& one) { return one.second.deadline < now; });
  }
}

std::shared_ptr<gloo::transport::Context> TlsDevice::createContext(int rank, int size) {
  return std::make_shared<TlsContext>(shared_from_this(), rank, size);
}

std::unique_ptr<gloo::transport::Pair>& TlsContext::createPair(int peer) {
  auto& pair = pairs_[static_cast<size_t>(peer)];
  pair = std::make_unique<TlsPair>(*this, peer);
  return pair;
}

std::unique_ptr<gloo::transport::UnboundBuffer> TlsContext::createUnboundBuffer(void* data, size_t bytes) {
  return std::make_unique<ContextBuffer>(shared_from_this(), data, bytes);
}

TlsLink& TlsContext::link(int peer) { return static_cast<TlsPair&>(*getPair(peer)).link(); }

void TlsContext::forget(const TlsBuffer& buffer) {
  for (const auto& pair : pairs_)
    if (pair) static_cast<TlsPair&>(*pair).link().forget(buffer);
}

/// Returns a connected socket. Throws EnvError.
int dial(const Place& place, double seconds) {
  Descriptor made(socket(place.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto bytes = static_cast<socklen_t>(place.address_bytes);
  int error = connect(made.get(), reinterpret_cast<const sockaddr*>(&place.address), bytes) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd ready{made.get(), POLLOUT, 0};
    socklen_t size = sizeof error;
    error = ETIMEDOUT;
    if (poll(&ready, 1, static_cast<int>(seconds * 1000)) > 0)
      getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0)
    throw EnvError(fmt::format("cannot connect to {}: {}", text_of(place.address, bytes), std::strerror(error)));
  send_at_once(made.get());
  return made.release();
}

/// Returns a connection whose handshake is done. Throws EnvError.
std::unique_ptr<TlsStream> dial_tls(const Place& place, const std::string& token, double seconds) {
  const auto begin = Clock::now();
  for (int attempt = 1;; ++attempt) {
    const double left = seconds - std::chrono::duration<double>(Clock::now() - begin).count();
    try {
      return TlsStream::connect(dial(place, left), token, left);
    } catch (const EnvError&) {
      if (attempt == kDialAttempts || Clock::now() - begin + kNap > std::chrono::duration<double>(seconds)) throw;
      std::this_thread::sleep_for(kNap);
    }
  }
}

void TlsPair::connect(const std::vector<char>& bytes) {
  const milliseconds timeout = context_.getTimeout();
  if (context_.rank > peer_) {
    if (link_->wait_connected(timeout)) return;
    throw gloo::IoException(fmt::format("Timed out waiting {}ms for rank {} of the group", timeout.count(), peer_));
  }
  Place place;
  if (bytes.size() != sizeof place) throw gloo::IoException("the address of a peer has an unexpected size");
  std::memcpy(&place, bytes.data(), sizeof place);
  const double seconds = std::chrono::duration<double>(timeout).count();
  try {
    std::unique_ptr<TlsStream> stream = dial_tls(place, context_.device().token(), seconds);
    stream->write({place.name.data(), place.name.size()}, seconds);
    link_->adopt(std::move(stream));
  } catch (const EnvError& error) {
    throw gloo::IoException(fmt::format("no TLS connection to rank {} of the group: {}", peer_, error.what()));
  }
}

}  // namespace

std::shared_ptr<gloo::transport::Device> make_tls_device(const TlsDeviceOptions& options) {
  return std::make_shared<TlsDevice>(options);
}

}  // namespace trainctl::comm
