// See agent_ranks.h.
#include "launcher/hosts/agent_ranks.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "launcher/hosts/relay.h"
#include "launcher/hosts/report_json.h"
#include "launcher/hosts/scripts.h"
#include "launcher/log_pipe.h"
#include "launcher/protocol.h"
#include "launcher/rank_error.h"

namespace trainctl::hosts {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using Kind = Message::Kind;

constexpr double kAliveSeconds = 0.5;
/// A connection without a word for so long is given up, and another is tried.
constexpr double kSilentSeconds = 3, kRetrySeconds = 0.3, kAttemptSeconds = 5;
/// For the first connection of an agent: it may have to go a long way. A bundle is 100 MB.
constexpr double kConnectSeconds = 60, kInstallSeconds = 900;
constexpr size_t kWriteAhead = 1 << 20, kMostSaid = 8192;
constexpr double kFarewellSeconds = 5;
constexpr uint64_t kConfirmEvery = 16;
constexpr int kLastWordLooks = 100;  ///< at most 10 ms apart

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

/// What a transport said, in one line; its last lines say why it ended.
std::string in_one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  std::erase(text, '\r');
  replace_all(text, "\n", "; ");
  return text.size() <= 600 ? text : "…" + text.substr(text.size() - 600);
}

bool is_plain(const fs::path& path) {
  return !path.empty() && path.is_relative() &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".." || part == "."; });
}

}  // namespace

AgentRanks::AgentRanks(const Launch& launch, HostsOptions options, LauncherBoard board, asio::io_context& loop)
    : launch_(launch),
      options_(std::move(options)),
      board_(std::move(board)),
      loop_(loop),
      bundle_(bundle_of_this_program()),
      token_(store::random_token()),
      disk_(loop, launch.directory, launch.log_limits,
            [this](const std::string& message) {
              if (events_.notice) events_.notice(message);
            }),
      children_(loop, SIGCHLD) {
  for (const RankPlace& place : launch.cluster.places) {
    if (hosts_.empty() || place.local_rank == 0) {
      hosts_.push_back(std::make_unique<Host>());
      hosts_.back()->index = static_cast<int>(hosts_.size()) - 1;
      hosts_.back()->name = place.host;
    }
    hosts_.back()->places.push_back(place);
    hosts_.back()->ranks.push_back(place.rank);
    host_of_[place.rank] = hosts_.back()->index;
  }
}

AgentRanks::~AgentRanks() {
  for (const auto& host : hosts_) drop_child(*host);
}

double AgentRanks::now() const { return steady_seconds(); }

void AgentRanks::listen(Events events) {
  events_ = std::move(events);
  await_child();
  for (const auto& host : hosts_) reset(*host);
}

/// A new agent.
void AgentRanks::reset(Host& host) {
  host.id = store::random_token().substr(0, 16);
  host.session = Session();
  host.connection = 0;
  host.has_joined = host.was_installed = false;
  host.fault.clear();
  host.heard = now();
  prepare(host);
  connect(host);
}

// Connections.

void AgentRanks::connect(Host& host) {
  host.state = host.has_joined ? State::away : State::connecting;
  host.tried = now();
  try {
    run_child(host, agent_script(bundle_, host.id, !host.has_joined));
  } catch (const EnvError& error) {
    return lose(host, error.what());
  }
  Host* at = &host;
  host.wire = Wire::open(loop_, std::exchange(host.child.out, -1), std::exchange(host.child.in, -1), kAgentLine,
                         {.frame = [this, at](Frame frame) { received(*at, std::move(frame)); },
                          .closed = [this, at](const std::string& why) { broken(*at, why); }});
  host.wire->write(encode(Join{kVersion, ++host.connection, host.session.received(), token_}));
}

void AgentRanks::install(Host& host) {
  host.state = State::installing;
  host.was_installed = true;
  try {
    run_child(host, install_script(bundle_), [bundle = bundle_](int fd) { write_tar(bundle, fd); });
    ::close(std::exchange(host.child.out, -1));
  } catch (const EnvError& error) {
    lose(host, error.what());
  }
}

/// Replaces the child that the host has.
void AgentRanks::run_child(Host& host, const std::string& script, const Feed& feed) {
  drop_child(host);
  host.child = options_.transport->run(host.name, script, feed);
  host.said = std::make_shared<std::string>();
  host.errors = std::make_shared<asio::posix::stream_descriptor>(loop_, std::exchange(host.child.err, -1));
  auto buffer = std::make_shared<std::array<char, 4096>>();
  auto read = std::make_shared<std::function<void()>>();
  *read = [errors = host.errors, said = host.said, buffer, weak = std::weak_ptr(read)] {
    errors->async_read_some(asio::buffer(*buffer),
                            [said, buffer, again = weak.lock()](const boost::system::error_code& error, size_t n) {
                              if (error) return;
                              said->append(buffer->data(), n);
                              if (said->size() > kMostSaid) said->erase(0, said->size() - kMostSaid);
                              if (again) (*again)();
                            });
  };
  (*read)();
}

void AgentRanks::drop_child(Host& host) {
  if (host.wire) host.wire->close();
  host.wire.reset();
  host.session.lost();
  if (host.errors) {
    boost::system::error_code ignored;
    host.errors->close(ignored);
    host.errors.reset();
  }
  for (int* fd : {&host.child.in, &host.child.out, &host.child.err})
    if (*fd >= 0) ::close(std::exchange(*fd, -1));
  for (int* pid : {&host.child.pid, &host.child.feeder}) {
    if (*pid <= 0) continue;
    kill(*pid, SIGKILL);
    waitpid(std::exchange(*pid, -1), nullptr, 0);
  }
}

void AgentRanks::await_child() {
  children_.async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    for (const auto& host : hosts_) {
      int status = 0;
      if (host->child.pid > 0 && waitpid(host->child.pid, &status, WNOHANG) == host->child.pid) {
        host->child.pid = -1;
        if (host->state == State::installing) installed(*host, status);
      }
    }
    await_child();
  });
}

void AgentRanks::installed(Host& host, int status) {
  host.heard = now();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return connect(host);
  const std::string said = last_words(host);
  lose(host, "cannot be given this program: " + (said.empty() ? options_.transport->name() + " ended" : said));
}

void AgentRanks::broken(Host& host, const std::string& why) {
  const std::string noise = host.wire->noise();
  host.wire.reset();
  host.session.lost();
  if (host.has_joined) {
    if (noise.find(kGoneLine) != std::string::npos) return lose(host, "has lost its agent");
    host.state = State::away;  // look() tries again
    return;
  }
  if (noise.find(kNotInstalled) != std::string::npos && !host.was_installed) return install(host);
  if (const size_t at = noise.find(kWrongMachine); at != std::string::npos)
    return lose(host, "is of another kind: " + in_one_line(noise.substr(at + std::strlen(kWrongMachine) + 1)) +
                          ", and this program is for " + bundle_.machine);
  const std::string said = last_words(host);
  lose(host, "cannot be reached: " + (said.empty() ? why : said));
}

/// What the transport says to the end; it ends a moment after its output.
std::string AgentRanks::last_words(Host& host) {
  std::string said = *host.said;
  std::array<char, 4096> buffer{};
  for (int look = 0; look < kLastWordLooks && host.errors; ++look) {
    const ssize_t got = read(host.errors->native_handle(), buffer.data(), buffer.size());
    if (got == 0) break;
    if (got > 0) said.append(buffer.data(), static_cast<size_t>(got));
    if (got < 0) usleep(10'000);
  }
  return in_one_line(said);
}

void AgentRanks::lose(Host& host, const std::string& why) {
  if (host.state == State::lost) return;
  host.state = State::lost;
  host.fault = why;
  host.ready = false;
  drop_child(host);
  std::vector<int> ranks;
  for (const int rank : host.ranks)
    if (running_.contains(rank)) ranks.push_back(rank);
  std::erase_if(to_start_, [&](const RankPlace& place) { return host_of_.at(place.rank) == host.index; });
  for (const int rank : ranks) {
    if (!host.has_joined) {
      running_.erase(rank);
      events_.failed_to_start(rank, "host " + host.name + " " + why);
      continue;
    }
    RankReport report;
    report.state = ProcessState::ended;
    report.end = {-1, true, SIGKILL};
    report.time = wall_seconds();
    report.host_lost = why;
    rank_ended(rank, std::move(report));
  }
  close_gates();
}

// Messages.

void AgentRanks::send(Host& host, Kind kind, int rank, int64_t number, std::string name, std::string text) {
  if (host.state == State::lost) return;
  host.session.send({kind, attempt_, rank, number, std::move(name), std::move(text)});
  flush(host);
}

void AgentRanks::flush(Host& host) {
  if (host.wire && host.session.has_output() && host.wire->unwritten_bytes() < kWriteAhead)
    host.wire->write(host.session.take_output(kWriteAhead));
}

void AgentRanks::received(Host& host, Frame frame) {
  host.heard = now();
  if (const auto* welcome = std::get_if<Welcome>(&frame)) {
    if (welcome->version != kVersion || !host.session.joined(welcome->received))
      return lose(host, "has another version's agent");
    host.has_joined = true;
    host.state = State::joined;
    return flush(host);
  }
  if (const auto* alive = std::get_if<Alive>(&frame)) {
    if (!host.session.confirmed(alive->received)) return lose(host, "confirms what it was never sent");
    return flush(host);
  }
  auto* numbered = std::get_if<Numbered>(&frame);
  if (numbered == nullptr || host.state != State::joined) return lose(host, "speaks out of turn");
  bool gap = false;
  auto message = host.session.receive(std::move(*numbered), gap);
  if (gap) return lose(host, "left out a message");
  if (message) handle(host, *message);
  if (host.wire && host.session.received() - host.told >= kConfirmEvery) {
    host.told = host.session.received();
    host.wire->write(encode(Alive{host.told}));
  }
}

void AgentRanks::handle(Host& host, Message& message) {
  const bool is_of_rank = std::find(host.ranks.begin(), host.ranks.end(), message.rank) != host.ranks.end();
  const bool is_old = message.attempt != attempt_;
  switch (message.kind) {
    case Kind::ready:
      if (!is_old) ready(host, message.text);
      return;
    case Kind::refused:
      if (!is_old) lose(host, "cannot run its ranks: " + message.text);
      return;
    case Kind::started:
      if (!is_old && is_of_rank && launch_.on_rank_started) launch_.on_rank_started(message.rank, 0);
      return;
    case Kind::no_start:
      if (!is_old && is_of_rank && running_.erase(message.rank) > 0)
        events_.failed_to_start(message.rank, message.text);
      return;
    case Kind::ended:
      if (is_old || !is_of_rank) return;
      if (auto report = parse_report(message.text, wall_seconds())) return rank_ended(message.rank, std::move(*report));
      return lose(host, "sent a report that cannot be read");
    case Kind::frozen:
      if (is_of_rank && message.number != 0) frozen_.insert(message.rank);
      if (is_of_rank && message.number == 0) frozen_.erase(message.rank);
      return;
    case Kind::held:
      host.held = static_cast<uint64_t>(message.number);
      return close_gates();
    case Kind::output:
      if (is_of_rank) write_output(message);
      return;
    case Kind::file:
      return write_file(message);
    case Kind::notice:
      if (events_.notice) events_.notice(host.name + ": " + message.text);
      return;
    case Kind::board:
      if (!is_old && !board_.apply(message.text, host.ranks)) lose(host, "speaks for ranks of other hosts");
      return;
    case Kind::value:
      if (is_old) return;
      for (const auto& other : hosts_)
        if (other.get() != &host) send(*other, Kind::value, -1, 0, message.name, message.text);
      return;
    default:
      return lose(host, "sends what only a launcher sends");
  }
}

void AgentRanks::prepare(Host& host) {
  Json places = Json::array();
  for (const RankPlace& place : host.places) places.push_back({place.rank, place.local_rank});
  const Json json = {{"host", host.name},
                     {"run", launch_.directory.run()},
                     {"places", places},
                     {"reconnect", options_.reconnect_seconds},
                     {"interface", options_.interface},
                     {"bind", static_cast<int>(options_.bind)},
                     {"explain", launch_.limits.ranks_explain},
                     {"hold_port", options_.hold_port && host.index == 0},
                     {"files", options_.files},
                     {"workload", board_.workload()}};
  host.ready = false;
  host.session.send({Kind::prepare, attempt_, -1, 0, "", json.dump()});
}

void AgentRanks::ready(Host& host, const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return lose(host, "sent a text that cannot be read");
  host.address = json.value("address", "");
  host.port = json.value("port", 0);
  host.ready = true;
  send_starts();
}

/// The first rank starts when every host is there: a host that is not costs no rank its time.
void AgentRanks::send_starts() {
  if (std::any_of(hosts_.begin(), hosts_.end(), [](const auto& host) { return !host->ready; })) return;
  const Host& first = *hosts_.front();
  for (const RankPlace& place : std::exchange(to_start_, {})) {
    const ProcessCommand command = launch_.command(place, static_cast<int>(attempt_));
    const auto filled = [&](std::string value) {
      replace_all(value, "{first_address}", first.address);
      replace_all(value, "{first_port}", std::to_string(first.port));
      return value;
    };
    Json environment = Json::array();
    for (const auto& [name, value] : command.environment) environment.push_back({name, filled(value)});
    const Json json = {{"argv", command.argv}, {"environment", environment}, {"working_dir", command.working_dir}};
    send(host_of(place.rank), Kind::start, place.rank, 0, "", json.dump());
  }
}

// What Supervision decides.

void AgentRanks::start(const RankPlace& place, int) {
  const Host& host = host_of(place.rank);
  Output output;
  disk_.open(output.out = ++last_stream_, place.rank, false, static_cast<int>(attempt_));
  disk_.open(output.err = ++last_stream_, place.rank, true, static_cast<int>(attempt_));
  outputs_[place.rank] = std::move(output);
  if (host.state == State::lost) return events_.failed_to_start(place.rank, "host " + host.name + " " + host.fault);
  running_.insert(place.rank);
  events_.started(place.rank);
  to_start_.push_back(place);
  if (to_start_.size() == launch_.cluster.places.size()) send_starts();
}

void AgentRanks::signal(int rank, int signal) {
  const auto waits =
      std::find_if(to_start_.begin(), to_start_.end(), [&](const RankPlace& p) { return p.rank == rank; });
  if (waits == to_start_.end()) return send(host_of(rank), Kind::signal, rank, signal);
  to_start_.erase(waits);
  // Supervision goes through its ranks while it calls this.
  asio::post(loop_, [this, rank, signal] {
    RankReport report;
    report.end = {-1, true, signal};
    report.time = wall_seconds();
    rank_ended(rank, std::move(report));
  });
}

void AgentRanks::restart(int attempt) {
  attempt_ = static_cast<uint32_t>(attempt);
  stop_asked_ = gates_closed_ = false;
  frozen_.clear();
  running_.clear();
  to_start_.clear();
  for (const auto& host : hosts_) {
    host->held.reset();
    if (host->state == State::lost) {
      reset(*host);
    } else {
      prepare(*host);
      flush(*host);
    }
  }
}

void AgentRanks::rank_ended(int rank, RankReport report) {
  if (running_.erase(rank) == 0) return;
  frozen_.erase(rank);
  give_lines(rank, false, "", true);
  give_lines(rank, true, "", true);
  const Output& output = outputs_.at(rank);
  disk_.close(output.out);
  disk_.close(output.err);
  report.state = ProcessState::ended;
  if (launch_.doing) report.doing = launch_.doing(rank);
  if (launch_.on_rank_ended) launch_.on_rank_ended(rank, report.failed());
  events_.ended(rank, std::move(report));
}

bool AgentRanks::is_heard(int rank) const {
  const Host& host = *hosts_[static_cast<size_t>(host_of_.at(rank))];
  return host.state == State::joined && now() - host.heard < 2 * kAliveSeconds;
}

void AgentRanks::ask_to_stop() {
  stop_asked_ = true;
  if (!to_start_.empty()) {  // the ranks that have not started never will
    std::vector<int> ranks;
    for (const RankPlace& place : to_start_) ranks.push_back(place.rank);
    for (const int rank : ranks) signal(rank, SIGTERM);
    return;
  }
  for (const auto& host : hosts_) send(*host, Kind::hold);
}

/// All have answered: the highest step that any rank has started is the last one.
void AgentRanks::close_gates() {
  if (!stop_asked_ || gates_closed_) return;
  uint64_t last = 0;
  for (const auto& host : hosts_) {
    if (host->state == State::lost) continue;
    if (!host->held) return;
    last = std::max(last, *host->held);
  }
  gates_closed_ = true;
  board_.stop_after(last);
  for (const auto& host : hosts_) send(*host, Kind::stop, -1, static_cast<int64_t>(last));
}

// What ranks wrote.

void AgentRanks::write_output(const Message& message) {
  if (!running_.contains(message.rank) || message.text.empty()) return;
  const bool is_error = message.name == "stderr";
  const Output& output = outputs_.at(message.rank);
  disk_.write(is_error ? output.err : output.out, message.text, unix_ns());
  give_lines(message.rank, is_error, message.text, false);
}

void AgentRanks::give_lines(int rank, bool is_error, std::string_view bytes, bool ends) {
  const auto& listener = is_error ? launch_.on_error_line : launch_.on_line;
  std::string& line = is_error ? outputs_.at(rank).error_line : outputs_.at(rank).line;
  if (!listener) return;
  line += bytes;
  size_t at = 0;
  for (size_t end = line.find('\n'); end != std::string::npos; end = line.find('\n', at)) {
    listener(rank, std::string_view(line).substr(at, end - at));
    at = end + 1;
  }
  line.erase(0, at);
  if (!ends || line.empty()) return;
  listener(rank, line);
  line.clear();
}

/// Of a rank's folder, or of the first rank in the run's folder. Never outside it.
void AgentRanks::write_file(const Message& message) {
  const fs::path path = message.name;
  if (!is_plain(path) || message.number < 0) return;
  const std::string target = launch_.directory.file(message.name);
  std::error_code ignored;
  fs::create_directories(fs::path(target).parent_path(), ignored);
  const int fd =
      ::open(target.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (message.number == 0 ? O_TRUNC : 0), 0666);
  if (fd < 0) return;
  std::string_view bytes = message.text;
  off_t offset = message.number;
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd, bytes.data(), bytes.size(), offset);
    if (put <= 0) break;
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += put;
  }
  ::close(fd);
}

// Time.

void AgentRanks::look() {
  disk_.look();
  if (ending_) return;
  for (const auto& host : hosts_) look(*host);
}

void AgentRanks::look(Host& host) {
  if (host.state == State::lost) return;
  if (host.wire) host.wire->pause(disk_.is_full());
  if (host.state == State::joined) {
    std::string changes = board_.changes_for(host.index);
    if (!changes.empty()) send(host, Kind::board, -1, 0, "", std::move(changes));
    if (now() - host.alive_told >= kAliveSeconds) {
      host.alive_told = now();
      host.told = host.session.received();
      host.wire->write(encode(Alive{host.told}));
    }
    flush(host);
    if (host.wire && host.wire->silent_seconds() > kSilentSeconds && !disk_.is_full()) {
      drop_child(host);
      host.state = State::away;
      if (events_.notice)
        events_.notice("host " + host.name + " does not answer; the ranks go on, and the connection is tried again");
    }
  }
  const double limit = host.has_joined                   ? options_.reconnect_seconds
                       : host.state == State::installing ? kInstallSeconds
                                                         : kConnectSeconds;
  if (now() - host.heard > limit) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g s", limit);
    return lose(host, std::string("has not answered for ") + seconds);
  }
  if (host.state != State::away) return;
  const double patience = host.wire ? kAttemptSeconds : kRetrySeconds;
  if (now() - host.tried > patience) connect(host);
}

/// Agents delete what is left of the run on their hosts.
void AgentRanks::end() {
  ending_ = true;
  for (const auto& host : hosts_) send(*host, Kind::end);
  const double deadline = now() + kFarewellSeconds;
  const auto is_done = [](const auto& host) { return host->state == State::lost || !host->wire; };
  while (now() < deadline && !std::all_of(hosts_.begin(), hosts_.end(), is_done)) {
    for (const auto& host : hosts_) {
      if (host->wire) host->wire->write(encode(Alive{host->session.received()}));
      flush(*host);
    }
    loop_.run_for(std::chrono::milliseconds(20));
    loop_.restart();
  }
  disk_.end();
}

}  // namespace trainctl::hosts
