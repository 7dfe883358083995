// The launcher's link to the agent of one host, which survives broken connections: it starts the agent with a
// Transport, installs the program where it is missing, reconnects, and gives up after a limit.
#include "launcher/hosts/host_link.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "launcher/hosts/relay.h"
#include "launcher/hosts/scripts.h"
#include "launcher/protocol.h"
#include "launcher/rank_error.h"

namespace trainctl::hosts {
namespace {

namespace asio = boost::asio;

constexpr double kLinkAliveSeconds = 0.5;
/// A connection that is silent for this long is closed, and another is tried; at the latest after half of
/// launch.reconnect.
constexpr double kSilentSeconds = 3, kRetrySeconds = 0.3, kAttemptSeconds = 5;
/// Timeouts of an agent's first connection, which may be slow, and of an installation; a bundle has 100 MB.
constexpr double kConnectSeconds = 60, kInstallSeconds = 900;
constexpr size_t kLinkWriteAhead = 1 << 20, kMaxErrorText = 8192;
constexpr uint64_t kConfirmFramesEvery = 16;
constexpr int kLastWordLooks = 100;  ///< at most 10 ms apart

/// Output of a transport in one line. Keeps the end, since the last lines say why the transport ended.
std::string in_one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  std::erase(text, '\r');
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at)) text.replace(at, 1, "; ");
  return text.size() <= 600 ? text : "…" + text.substr(text.size() - 600);
}

}  // namespace

HostLink::HostLink(asio::io_context& loop, const Reach& reach, std::string host, Events events)
    : loop_(loop), reach_(reach), host_(std::move(host)), events_(std::move(events)), heard_(steady_seconds()) {}

HostLink::~HostLink() { drop_child(); }

double HostLink::silent_seconds() const { return steady_seconds() - heard_; }

void HostLink::begin(Message first) {
  id_ = store::random_token().substr(0, 16);
  session_ = Session();
  connection_ = confirmed_ = 0;
  has_joined_ = was_installed_ = is_late_ = false;
  fault_.clear();
  heard_ = steady_seconds();
  session_.send(std::move(first));
  connect();
}

void HostLink::connect() {
  state_ = has_joined_ ? State::away : State::connecting;
  tried_ = steady_seconds();
  try {
    run_child(agent_script(reach_.bundle, id_, !has_joined_));
  } catch (const EnvError& error) {
    return lose(error.what());
  }
  wire_ = Wire::open(loop_, std::exchange(child_.out, -1), std::exchange(child_.in, -1), kAgentLine,
                     {.frame = [this](Frame frame) { received(std::move(frame)); },
                      .closed = [this](const std::string& why) { broken(why); }});
  wire_->write(encode(Join{kVersion, ++connection_, session_.received(), reach_.token}));
}

void HostLink::install() {
  state_ = State::installing;
  was_installed_ = true;
  try {
    run_child(install_script(reach_.bundle), [bundle = reach_.bundle](int fd) { write_tar(bundle, fd); });
    ::close(std::exchange(child_.out, -1));
  } catch (const EnvError& error) {
    lose(error.what());
  }
}

/// Starts a new child process for the host in place of the old one.
void HostLink::run_child(const std::string& script, const Feed& feed) {
  drop_child();
  child_ = reach_.transport.run(host_, script, feed);
  error_text_ = std::make_shared<std::string>();
  errors_ = std::make_shared<asio::posix::stream_descriptor>(loop_, std::exchange(child_.err, -1));
  auto buffer = std::make_shared<std::array<char, 4096>>();
  auto read = std::make_shared<std::function<void()>>();
  *read = [errors = errors_, output = error_text_, buffer, weak = std::weak_ptr(read)] {
    errors->async_read_some(asio::buffer(*buffer),
                            [output, buffer, again = weak.lock()](const boost::system::error_code& error, size_t n) {
                              if (error) return;
                              output->append(buffer->data(), n);
                              if (output->size() > kMaxErrorText) output->erase(0, output->size() - kMaxErrorText);
                              if (again) (*again)();
                            });
  };
  (*read)();
}

void HostLink::drop_child() {
  if (wire_) wire_->close();
  wire_.reset();
  session_.lost();
  if (errors_) {
    boost::system::error_code ignored;
    errors_->close(ignored);
    errors_.reset();
  }
  for (int* fd : {&child_.in, &child_.out, &child_.err})
    if (*fd >= 0) ::close(std::exchange(*fd, -1));
  for (int* pid : {&child_.pid, &child_.feeder}) {
    if (*pid <= 0) continue;
    kill(*pid, SIGKILL);
    waitpid(std::exchange(*pid, -1), nullptr, 0);
  }
}

void HostLink::look_at_child() {
  int status = 0;
  if (child_.pid <= 0 || waitpid(child_.pid, &status, WNOHANG) != child_.pid) return;
  child_.pid = -1;
  if (state_ == State::installing) installed(status);
}

void HostLink::installed(int status) {
  heard_ = steady_seconds();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return connect();
  const std::string output = error_output();
  lose("could not install this program: " + (output.empty() ? reach_.transport.name() + " ended" : output));
}

void HostLink::broken(const std::string& why) {
  const std::string noise = wire_->noise();
  wire_.reset();
  session_.lost();
  if (has_joined_) {
    if (noise.find(kGoneLine) != std::string::npos) return lose("lost its agent process");
    state_ = State::away;  // look() reconnects
    return;
  }
  if (noise.find(kNotInstalled) != std::string::npos && !was_installed_) return install();
  if (const size_t at = noise.find(kWrongMachine); at != std::string::npos)
    return lose("has a different architecture: " + in_one_line(noise.substr(at + std::strlen(kWrongMachine) + 1)) +
                "; this program is for " + reach_.bundle.machine);
  const std::string output = error_output();
  lose("cannot be reached: " + (output.empty() ? why : output));
}

/// Reads the rest of the transport's stderr; the transport ends shortly after its output.
std::string HostLink::error_output() {
  std::string output = *error_text_;
  std::array<char, 4096> buffer{};
  for (int look = 0; look < kLastWordLooks && errors_; ++look) {
    const ssize_t got = read(errors_->native_handle(), buffer.data(), buffer.size());
    if (got == 0) break;
    if (got > 0) output.append(buffer.data(), static_cast<size_t>(got));
    if (got < 0) usleep(10'000);
  }
  return in_one_line(output);
}

void HostLink::lose(const std::string& why) {
  if (state_ == State::lost) return;
  state_ = State::lost;
  fault_ = why;
  drop_child();
  events_.lost(why);
}

void HostLink::send(Message message) {
  if (state_ == State::lost) return;
  session_.send(std::move(message));
  flush();
}

void HostLink::flush() {
  if (wire_ && session_.has_output() && wire_->unwritten_bytes() < kLinkWriteAhead)
    wire_->write(session_.take_output(kLinkWriteAhead));
}

void HostLink::confirm() {
  confirmed_ = session_.received();
  if (wire_) wire_->write(encode(Alive{confirmed_}));
}

void HostLink::received(Frame frame) {
  heard_ = steady_seconds();
  if (const auto* welcome = std::get_if<Welcome>(&frame)) {
    if (welcome->version != kVersion || !session_.joined(welcome->received))
      return lose("runs an agent of a different version; install the same version on all hosts");
    has_joined_ = true;
    state_ = State::joined;
    return flush();
  }
  if (const auto* alive = std::get_if<Alive>(&frame)) {
    if (!session_.confirmed(alive->received)) return lose("confirmed messages that it was never sent");
    events_.confirmed();
    return flush();
  }
  auto* numbered = std::get_if<Numbered>(&frame);
  if (numbered == nullptr || state_ != State::joined) return lose("sent an unexpected message");
  bool gap = false;
  auto message = session_.receive(std::move(*numbered), gap);
  if (gap) return lose("skipped a message");
  if (message) events_.message(*message);
  if (wire_ && session_.received() - confirmed_ >= kConfirmFramesEvery) confirm();
}

void HostLink::look(bool pauses) {
  if (state_ == State::lost) return;
  if (wire_) wire_->pause(pauses);
  if (state_ == State::joined) {
    if (steady_seconds() - alive_reported_ >= kLinkAliveSeconds) {
      alive_reported_ = steady_seconds();
      confirm();
    }
    flush();
    const double silent = std::min(kSilentSeconds, reach_.reconnect_seconds / 2);
    if (wire_ && wire_->silent_seconds() > silent && !pauses) {
      drop_child();
      state_ = State::away;
      events_.notice("host " + host_ + " does not respond; the ranks continue, and the launcher tries to reconnect");
    }
  }
  if (state_ == State::connecting && !is_late_ && silent_seconds() > kLateSeconds) {
    is_late_ = true;
    events_.notice(
        fmt::format("host {} has not responded for {:g} s; the limit is {:g} s", host_, kLateSeconds, kConnectSeconds));
  }
  const double limit = has_joined_                   ? reach_.reconnect_seconds
                       : state_ == State::installing ? kInstallSeconds
                                                     : kConnectSeconds;
  if (silent_seconds() > limit) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g s", limit);
    return lose(std::string("has not responded for ") + seconds);
  }
  if (state_ != State::away) return;
  const double patience = wire_ ? kAttemptSeconds : kRetrySeconds;
  if (steady_seconds() - tried_ > patience) connect();
}

}  // namespace trainctl::hosts
