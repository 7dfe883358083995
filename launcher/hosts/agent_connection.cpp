// Accepts connections of the launcher, and exchanges numbered messages with it over the one that has joined last.
#include "launcher/hosts/agent_connection.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "launcher/hosts/same_user.h"

namespace trainctl::hosts {
namespace {

/// Largest amount of unconfirmed output. Beyond it ranks wait.
constexpr size_t kMostUnconfirmed = 4 << 20;
constexpr size_t kWriteAhead = 1 << 20;
/// Pieces of files are large, and the launcher sends at most 4 MiB ahead of the confirmed bytes.
constexpr uint64_t kConfirmEvery = 4;
/// Largest number of unauthenticated peers. Beyond it a new one closes the oldest.
constexpr size_t kMostNewcomers = 16;

}  // namespace

AgentConnection::AgentConnection(boost::asio::io_context& loop, int listener, Events events)
    : loop_(loop), acceptor_(loop, boost::asio::local::stream_protocol(), listener), events_(std::move(events)) {}

void AgentConnection::send(Message message) {
  session_.send(std::move(message));
  flush();
}

void AgentConnection::flush() {
  if (wire_ && session_.has_output() && wire_->unwritten_bytes() < kWriteAhead)
    wire_->write(session_.take_output(kWriteAhead));
}

bool AgentConnection::is_full() const { return session_.unconfirmed_bytes() > kMostUnconfirmed; }

double AgentConnection::silent_seconds() const { return std::chrono::duration<double>(Clock::now() - heard_).count(); }

void AgentConnection::accept() {
  acceptor_.async_accept(
      [this](const boost::system::error_code& error, boost::asio::local::stream_protocol::socket socket) {
        if (error == boost::asio::error::operation_aborted) return;
        if (error || !is_of_this_user(socket.native_handle())) return accept();
        const int fd = socket.release();
        if (newcomers_.size() >= kMostNewcomers) refuse(newcomers_.front());
        // It becomes the current connection once it has joined.
        auto id = std::make_shared<std::weak_ptr<Wire>>();
        auto wire = Wire::open(loop_, fd, fd, "",
                               {.frame = [this, id](Frame frame) { received(id->lock(), std::move(frame)); },
                                .closed = [this, id](const std::string&) { closed(id->lock()); }});
        *id = wire;
        newcomers_.push_back(std::move(wire));
        accept();
      });
}

void AgentConnection::closed(const std::shared_ptr<Wire>& wire) {
  std::erase(newcomers_, wire);
  if (wire != wire_) return;
  wire_.reset();
  session_.lost();
}

void AgentConnection::received(const std::shared_ptr<Wire>& wire, Frame frame) {
  if (!wire) return;
  if (const auto* join = std::get_if<Join>(&frame)) return joined(wire, *join);
  if (wire != wire_) return refuse(wire);
  heard_ = Clock::now();
  if (const auto* alive = std::get_if<Alive>(&frame)) {
    if (!session_.confirmed(alive->received)) return refuse(wire);
    events_.confirmed();
    return flush();
  }
  auto* numbered = std::get_if<Numbered>(&frame);
  if (numbered == nullptr) return refuse(wire);
  bool broken = false;
  const auto message = session_.receive(std::move(*numbered), broken);
  if (broken) return refuse(wire);
  if (message) events_.message(*message);
  if (wire_ && session_.received() - confirmed_ >= kConfirmEvery) confirm();
}

void AgentConnection::confirm() {
  confirmed_ = session_.received();
  wire_->write(encode(Alive{confirmed_}));
}

/// The first connection sets the token.
void AgentConnection::joined(const std::shared_ptr<Wire>& wire, const Join& join) {
  if (join.version != kVersion || join.token.empty() || join.connection <= connection_) return refuse(wire);
  if (!token_.empty() && join.token != token_) return refuse(wire);
  if (std::find(newcomers_.begin(), newcomers_.end(), wire) == newcomers_.end()) return refuse(wire);
  if (!session_.joined(join.received)) return refuse(wire);
  token_ = join.token;
  connection_ = join.connection;
  std::erase(newcomers_, wire);
  if (wire_) wire_->close();
  wire_ = wire;
  heard_ = Clock::now();
  wire_->write(encode(Welcome{kVersion, session_.received()}));
  flush();
}

void AgentConnection::refuse(std::shared_ptr<Wire> wire) {
  wire->close();
  closed(wire);
}

}  // namespace trainctl::hosts
