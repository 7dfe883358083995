// The store's server: one session per connection, all on the launcher's thread.
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <map>

#include "engine/base/error.h"
#include "launcher/newcomers.h"
#include "launcher/protocol.h"
#include "launcher/store.h"

namespace trainctl {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int kMaxSessions = 4096;
constexpr size_t kMaxStoredBytes = size_t{256} << 20;
constexpr auto kHandshakeTime = std::chrono::seconds(10);
/// Pause if there is no descriptor for the next connection.
constexpr auto kAcceptRetry = std::chrono::milliseconds(50);

class Session;

}  // namespace

struct StoreServer::State : std::enable_shared_from_this<StoreServer::State> {
  State(asio::io_context& event_loop, std::string secret, OnSet callback)
      : loop(event_loop),
        acceptor(event_loop),
        retry(event_loop),
        token(std::move(secret)),
        on_set(std::move(callback)) {}

  void accept();
  void accept_later();
  /// Also replies to sessions that wait for the key. Returns false if the store is full.
  bool set(const std::string& key, std::string value);

  asio::io_context& loop;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  const std::string token;
  const OnSet on_set;
  int sessions = 0;
  Newcomers<Session> newcomers;
  size_t stored_bytes = 0;
  std::map<std::string, std::string> items;
  std::multimap<std::string, std::weak_ptr<Session>> waiting;
  bool closed = false;
};

namespace {

/// hello, proof, welcome, then requests one after another.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<StoreServer::State> state, tcp::socket socket)
      : state_(std::move(state)), socket_(std::move(socket)), timer_(state_->loop) {
    ++state_->sessions;
  }
  ~Session() { --state_->sessions; }

  void start() {
    nonce_ = store::random_nonce();
    timer_.expires_after(kHandshakeTime);
    timer_.async_wait([self = weak_from_this()](error_code error) {
      if (const auto session = self.lock(); session && !error) session->close();
    });
    send(store::frame({nonce_.data(), nonce_.size()}), &Session::check_proof, store::kMaxHandshakeBytes);
  }

  void close() {
    error_code ignored;
    timer_.cancel();
    socket_.close(ignored);
  }

  /// Called when the key that the session waits for has been set.
  void key_is_there(const std::string& value) {
    waiting_ = false;
    timer_.cancel();
    reply({true, value});
  }

 private:
  using Next = void (Session::*)();

  /// Writes `out`, reads the next frame of at most `limit` bytes into body_, then calls `next`.
  void send(std::string out, Next next, uint32_t limit) {
    out_ = std::move(out);
    asio::async_write(socket_, asio::buffer(out_), [self = shared_from_this(), next, limit](error_code error, size_t) {
      if (!error) self->read_size(next, limit);
    });
  }

  void read_size(Next next, uint32_t limit) {
    asio::async_read(socket_, asio::buffer(size_), [self = shared_from_this(), next, limit](error_code error, size_t) {
      if (error) return;
      const uint32_t size = store::parse_size(self->size_);
      if (size == 0 || size > limit) return self->close();
      self->read_body(next, size);
    });
  }

  void read_body(Next next, uint32_t size) {
    body_.resize(size);
    asio::async_read(socket_, asio::buffer(body_), [self = shared_from_this(), next](error_code error, size_t) {
      if (!error) ((*self).*next)();
    });
  }

  void check_proof() {
    store::Nonce client_nonce{};
    if (body_.size() != client_nonce.size() + sizeof(store::Mac)) return close();
    std::copy_n(body_.begin(), client_nonce.size(), client_nonce.begin());
    const store::Mac expected = store::client_mac(state_->token, nonce_, client_nonce);
    if (!store::same(expected, std::string_view(body_).substr(client_nonce.size()))) return close();
    state_->newcomers.remove(this);
    timer_.cancel();
    const store::Mac mine = store::server_mac(state_->token, nonce_, client_nonce);
    send(store::frame({mine.data(), mine.size()}), &Session::answer, store::kMaxFrameBytes);
  }

  void answer() {
    std::optional<store::Request> request = store::parse_request(body_);
    if (!request) return close();
    if (request->kind == store::Request::Kind::set) return set(*request);
    const auto found = state_->items.find(request->key);
    if (found != state_->items.end()) return reply({true, found->second});
    wait_for(*request);
  }

  void set(const store::Request& request) {
    if (!state_->set(request.key, request.value)) return reply({false, "the store is full"});
    if (state_->on_set) state_->on_set(request.key, request.value);
    reply({true, ""});
  }

  void wait_for(const store::Request& request) {
    const auto place = state_->waiting.emplace(request.key, weak_from_this());
    waiting_ = true;
    timer_.expires_after(std::chrono::milliseconds(request.timeout_ms));
    timer_.async_wait([self = shared_from_this(), place, key = request.key](error_code error) {
      if (error || !self->waiting_) return;  // the key was set, and the session has left the waiting list
      self->waiting_ = false;
      self->state_->waiting.erase(place);
      self->reply({false, "no rank has set '" + key + "'"});
    });
  }

  void reply(const store::Reply& reply) { send(store::encode(reply), &Session::answer, store::kMaxFrameBytes); }

  const std::shared_ptr<StoreServer::State> state_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  store::Nonce nonce_{};
  std::array<char, 4> size_{};
  std::string body_, out_;
  bool waiting_ = false;  ///< for a key; then it is in State::waiting
};

}  // namespace

void StoreServer::State::accept() {
  acceptor.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
    if (self->closed) return;
    if (error) return self->accept_later();
    if (self->sessions < kMaxSessions) {
      const auto session = std::make_shared<Session>(self, std::move(socket));
      self->newcomers.add(session);
      session->start();
    }
    self->accept();
  });
}

void StoreServer::State::accept_later() {
  retry.expires_after(kAcceptRetry);
  retry.async_wait([self = shared_from_this()](error_code) {
    if (!self->closed) self->accept();
  });
}

bool StoreServer::State::set(const std::string& key, std::string value) {
  const auto before = items.find(key);
  const size_t bytes = stored_bytes - (before == items.end() ? 0 : before->second.size()) + value.size();
  if (bytes > kMaxStoredBytes) return false;
  stored_bytes = bytes;
  std::string& item = items[key] = std::move(value);
  const auto [first, last] = waiting.equal_range(key);
  std::vector<std::shared_ptr<Session>> sessions_waiting;
  for (auto it = first; it != last; ++it) {
    if (auto session = it->second.lock()) sessions_waiting.push_back(std::move(session));
  }
  waiting.erase(first, last);
  for (const auto& session : sessions_waiting) session->key_is_there(item);
  return true;
}

StoreServer::StoreServer(asio::io_context& loop, std::string token, OnSet on_set)
    : state_(std::make_shared<State>(loop, std::move(token), std::move(on_set))) {
  try {
    state_->acceptor.open(tcp::v4());
    state_->acceptor.bind({asio::ip::address_v4::loopback(), 0});
    state_->acceptor.listen();
  } catch (const boost::system::system_error& error) {
    throw EnvError(std::string("the store cannot listen on 127.0.0.1: ") + error.what());
  }
  state_->accept();
}

StoreServer::~StoreServer() {
  error_code ignored;
  state_->closed = true;
  state_->retry.cancel();
  state_->acceptor.close(ignored);
}

bool StoreServer::put(const std::string& key, std::string value) { return state_->set(key, std::move(value)); }

uint16_t StoreServer::port() const { return state_->acceptor.local_endpoint().port(); }

}  // namespace trainctl
