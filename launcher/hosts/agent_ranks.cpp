// The ranks of a run on several hosts, reached through one agent per host (agent.h) over a HostLink: passes the board
// and the store from host to host, sends hosts the files that they lack, and writes the ranks' output.
#include "launcher/hosts/agent_ranks.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "launcher/hosts/broken_link.h"
#include "launcher/hosts/link_check.h"
#include "launcher/hosts/placeholders.h"
#include "launcher/hosts/report_json.h"
#include "launcher/protocol.h"
#include "launcher/rank_error.h"
#include "launcher/reported_error.h"

namespace trainctl::hosts {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::json;
using RankFrame = Message::Kind;

/// A host that has sent nothing for this long counts as not responding.
constexpr double kUnheardSeconds = 1;
/// Time for agents to confirm the end of the run and close their connections.
constexpr double kRankFarewellSeconds = 5;
/// Time for the other hosts to connect or fail after one host could not be reached.
constexpr double kOthersSeconds = 5;
/// Time without progress after which recovery of state from hosts ends.
constexpr double kRescueSeconds = 2;

}  // namespace

AgentRanks::AgentRanks(const Launch& launch, HostsOptions options, LauncherShare& share, LauncherSaves& saves,
                       asio::io_context& loop)
    : launch_(launch),
      options_(std::move(options)),
      share_(share),
      saves_(saves),
      loop_(loop),
      owners_(launch.directory.names(), launch.limits.ranks_explain),
      received_([this](const std::string& text) {
        if (events_.notice) events_.notice(text);
      }),
      bundle_(bundle_of_this_program()),
      token_(store::random_token()),
      disk_(loop, launch.directory, launch.log_limits,
            [this](const std::string& message) {
              if (events_.notice) events_.notice(message);
            }),
      outputs_(disk_, [this](int rank, std::string_view line,
                             bool is_error) { launch_.observer.on_line(rank, line, is_error); }),
      children_(loop, SIGCHLD),
      attempt_(static_cast<uint32_t>(options_.first_attempt)),
      kept_bytes_(share_.kept_bytes()) {
  for (const RankPlace& place : launch.cluster.places) {
    if (hosts_.empty() || place.local_rank == 0) {
      hosts_.push_back(std::make_unique<Host>());
      Host* host = hosts_.back().get();
      host->index = static_cast<int>(hosts_.size()) - 1;
      host->name = place.host;
      host->link = std::make_unique<HostLink>(
          loop_, HostLink::Reach{*options_.transport, bundle_, token_, options_.reconnect_seconds}, place.host,
          HostLink::Events{.message = [this, host](Message& message) { handle(*host, message); },
                           .confirmed = [this, host] { give(*host); },
                           .lost = [this, host](const std::string& why) { lost(*host, why); },
                           .notice =
                               [this](const std::string& what) {
                                 if (events_.notice) events_.notice(what);
                               }});
    }
    hosts_.back()->places.push_back(place);
    hosts_.back()->ranks.push_back(place.rank);
    host_of_[place.rank] = hosts_.back()->index;
  }
}

AgentRanks::~AgentRanks() = default;

double AgentRanks::now() const { return steady_seconds(); }

void AgentRanks::listen(Events events) {
  events_ = std::move(events);
  await_children();
  for (const auto& host : hosts_) host->link->begin(prepare(*host));
}

void AgentRanks::await_children() {
  children_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error, int) {
    if (error || alive.expired()) return;
    for (const auto& host : hosts_) host->link->look_at_child();
    await_children();
  });
}

/// Handles a lost host: its ranks count as killed, or as not started.
void AgentRanks::lost(Host& host, const std::string& why) {
  host.ready = false;
  if (!host.link->has_joined()) {
    if (unreached_since_ == 0) unreached_since_ = now();
    return;
  }
  std::vector<int> ranks;
  for (const int rank : host.ranks)
    if (running_.contains(rank)) ranks.push_back(rank);
  std::erase_if(to_start_, [&](const RankPlace& place) { return host_of_.at(place.rank) == host.index; });
  for (const int rank : ranks) {
    RankReport report;
    report.state = ProcessState::ended;
    report.end = {-1, true, SIGKILL};
    report.time = wall_seconds();
    report.host_lost = why;
    rank_ended(rank, std::move(report));
  }
  close_gates();
}

/// Reports all unreachable hosts at once: the other hosts get some time to respond, or to fail too.
void AgentRanks::report_unreached() {
  if (unreached_since_ == 0) return;
  const auto is_open = [](const auto& host) { return !host->link->is_lost() && !host->link->has_joined(); };
  if (std::any_of(hosts_.begin(), hosts_.end(), is_open) && now() - unreached_since_ < kOthersSeconds) return;
  unreached_since_ = 0;
  for (const auto& host : hosts_) {
    if (!host->link->is_lost() || host->link->has_joined()) continue;
    std::erase_if(to_start_, [&](const RankPlace& place) { return host_of_.at(place.rank) == host->index; });
    for (const int rank : host->ranks)
      if (running_.erase(rank) > 0) events_.failed_to_start(rank, "host " + host->name + " " + host->link->fault());
  }
  close_gates();
}

void AgentRanks::send(Host& host, RankFrame kind, int rank, int64_t number, std::string name, std::string text) {
  host.link->send({kind, attempt_, rank, number, std::move(name), std::move(text)});
}

// Messages.

void AgentRanks::handle(Host& host, Message& message) {
  try {
    carry_out(host, message);
  } catch (const Json::exception& error) {
    host.link->lose(std::string("sent an invalid message: ") + error.what());
  }
}

/// Handles one message of a host's agent. Messages of an earlier attempt, and of ranks that are not on that host, are
/// ignored.
void AgentRanks::carry_out(Host& host, Message& message) {
  const bool is_of_rank = std::find(host.ranks.begin(), host.ranks.end(), message.rank) != host.ranks.end();
  const bool is_old = message.attempt != attempt_;
  switch (message.kind) {
    case RankFrame::ready:
      if (!is_old) ready(host, message.text);
      return;
    case RankFrame::refused:
      if (!is_old) host.link->lose("cannot run its ranks: " + message.text);
      return;
    case RankFrame::started:
      if (is_old || !is_of_rank) return;
      launch_.program.started(message.rank, 0);
      return launch_.observer.on_rank_started(message.rank, 0);
    case RankFrame::no_start:
      if (!is_old && is_of_rank && running_.erase(message.rank) > 0)
        events_.failed_to_start(message.rank, message.text);
      return;
    case RankFrame::ended:
      if (is_old || !is_of_rank) return;
      if (auto report = parse_report(message.text, wall_seconds())) return ended(message.rank, std::move(*report));
      return host.link->lose("sent an invalid report");
    case RankFrame::frozen:
      if (is_of_rank && message.number != 0) frozen_.insert(message.rank);
      if (is_of_rank && message.number == 0) frozen_.erase(message.rank);
      return;
    case RankFrame::gates_held:
      host.highest_started = static_cast<uint64_t>(message.number);
      return close_gates();
    case RankFrame::output:
      if (running_.contains(message.rank) && is_of_rank && !message.text.empty())
        outputs_.write(message.rank, message.name == "stderr", message.text);
      return;
    case RankFrame::file:
      return write_file(host, message);
    case RankFrame::notice:
      if (events_.notice) events_.notice(host.name + ": " + message.text);
      return;
    case RankFrame::board:
      if (!is_old && !share_.apply(message.text, host.ranks)) host.link->lose("reported on ranks of other hosts");
      return;
    case RankFrame::save:
      if (!is_old && !saves_.take({message.name, message.rank, message.number, std::move(message.text)}, host.ranks))
        return host.link->lose("sent an invalid message about checkpoints");
      return send_saves();
    case RankFrame::value:
      if (is_old) return;
      for (const auto& other : hosts_)
        if (other.get() != &host) send(*other, RankFrame::value, -1, 0, message.name, message.text);
      return;
    case RankFrame::links:
      if (!is_old) note_links(host, message.text);
      return;
    default:
      return host.link->lose("sent a message that only a launcher may send");
  }
}

/// The message that prepares an agent for an attempt.
Message AgentRanks::prepare(Host& host) {
  Json places = Json::array();
  for (const RankPlace& place : host.places) places.push_back({place.rank, place.local_rank});
  Json copies = Json::array();
  for (const Copy& copy : options_.copies) copies.push_back({copy.path, copy.name});
  const Json json = {{"host", host.name},
                     {"run", launch_.directory.run()},
                     {"places", places},
                     {"reconnect", options_.reconnect_seconds},
                     {"interface", options_.interface},
                     {"bind", static_cast<int>(options_.bind)},
                     {"explain", launch_.limits.ranks_explain},
                     {"grace", launch_.limits.grace_seconds},
                     {"hold_port", options_.hold_port && host.index == 0},
                     {"files", options_.files},
                     {"copies", copies},
                     {"program_folder", options_.program_folder},
                     {"workload", share_.for_agents()}};
  host.ready = false;
  return {RankFrame::prepare, attempt_, -1, 0, "", json.dump()};
}

void AgentRanks::ready(Host& host, const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return host.link->lose("sent an invalid message");
  host.address = json.value("address", "");
  host.port = json.value("port", 0);
  host.link_port = json.value("link_port", 0);
  host.ready = true;
  if (json.value("lacks_files", false))
    for (const auto& [name, path] : share_.given()) host.to_give.add_file(name, path);
  give_copies(host, json.value("lacks_copies", std::set<std::string>()));
  give(host);
}

void AgentRanks::give_copies(Host& host, const std::set<std::string>& names) {
  for (const Copy& copy : options_.copies) {
    if (!names.contains(copy.name)) continue;
    if (events_.notice)
      events_.notice("copying " + copy.path + " (" + format_bytes(copy.bytes()) + ") to host " + host.name);
    host.to_give.add_copy(copy);
  }
}

void AgentRanks::give(Host& host) {
  host.to_give.send_some(*host.link, attempt_);
  if (host.ready && host.to_give.empty()) send_starts();
}

/// Starts the ranks when every host is ready, so that no rank spends its timeout waiting for a missing host.
void AgentRanks::send_starts() {
  const auto waits = [](const auto& host) { return !host->ready || !host->to_give.empty(); };
  if (to_start_.empty() || std::any_of(hosts_.begin(), hosts_.end(), waits)) return;
  const Host& first = *hosts_.front();
  for (const RankPlace& place : std::exchange(to_start_, {})) {
    const ProcessCommand command = launch_.program.command(place, static_cast<int>(attempt_));
    const auto filled = [&](const std::string& value) {
      return fill_placeholders(value, {{"first_address", first.address}, {"first_port", std::to_string(first.port)}});
    };
    Json environment = Json::array();
    for (const auto& [name, value] : command.environment) environment.push_back({name, filled(value)});
    Json json = {{"argv", command.argv}, {"environment", environment}, {"working_dir", command.working_dir}};
    if (!command.script.empty()) json["script"] = command.script;
    send(host_of(place.rank), RankFrame::start, place.rank, 0, "", json.dump());
  }
}

// Decisions of Supervision.

void AgentRanks::start(const RankPlace& place, int) {
  const Host& host = host_of(place.rank);
  outputs_.open(place.rank, static_cast<int>(attempt_));
  if (host.link->is_lost() && host.link->has_joined())
    return events_.failed_to_start(place.rank, "host " + host.name + " " + host.link->fault());
  running_.insert(place.rank);
  events_.started(place.rank);
  to_start_.push_back(place);
  if (to_start_.size() == launch_.cluster.places.size()) send_starts();
}

void AgentRanks::signal(int rank, int signal) {
  const auto waits =
      std::find_if(to_start_.begin(), to_start_.end(), [&](const RankPlace& p) { return p.rank == rank; });
  if (waits == to_start_.end()) return send(host_of(rank), RankFrame::signal, rank, signal);
  to_start_.erase(waits);
  // Supervision iterates over its ranks while it calls this.
  asio::post(loop_, [this, alive = std::weak_ptr(alive_), rank, signal] {
    if (alive.expired()) return;
    RankReport report;
    report.end = {-1, true, signal};
    report.time = wall_seconds();
    rank_ended(rank, std::move(report));
  });
}

/// Reads the error file of a rank, which its host has sent with the other files of the run's folder.
std::optional<RankError> AgentRanks::error_of(int rank) {
  if (disk_.hangs()) return std::nullopt;
  return reported_error(launch_.directory, rank, launch_.limits.ranks_explain).error;
}

void AgentRanks::restart(int attempt) {
  attempt_ = static_cast<uint32_t>(options_.first_attempt + attempt);
  kept_bytes_ = share_.kept_bytes();
  stop_asked_ = gates_closed_ = holds_ = false;
  frozen_.clear();
  running_.clear();
  to_start_.clear();
  complaints_.clear();
  unreached_since_ = 0;
  for (const auto& host : hosts_) {
    host->highest_started.reset();
    host->to_give.clear();
    if (host->link->is_lost())
      host->link->begin(prepare(*host));
    else
      host->link->send(prepare(*host));
  }
}

/// A rank that reports a lost peer may have lost only the link to it, so its report waits for a check of all links.
void AgentRanks::ended(int rank, RankReport report) {
  const bool complains = !launch_.limits.ranks_explain || (report.error && report.error->kind == ErrorKind::comm);
  if (hosts_.size() < 2 || !report.failed() || report.end.signaled || !complains || !running_.contains(rank))
    return rank_ended(rank, std::move(report));
  complaints_.emplace_back(rank, std::move(report));
  if (complaints_.size() == 1) ask_for_links();
}

void AgentRanks::ask_for_links() {
  links_asked_ = now();
  for (const auto& host : hosts_) {
    host->link_faults.clear();
    host->has_checked_links = false;
    Json others = Json::array();
    for (const auto& other : hosts_)
      if (other != host && other->ready && other->link_port > 0)
        others.push_back({other->name, other->address, other->link_port});
    if (host->ready) send(*host, RankFrame::links, -1, 0, "", others.dump());
  }
}

/// Notes which other hosts a host cannot reach.
void AgentRanks::note_links(Host& host, const std::string& text) {
  const Json faults = Json::parse(text, nullptr, false);
  if (!faults.is_object()) return;
  for (const auto& [name, fault] : faults.items())
    if (fault.is_string()) host.link_faults[name] = fault.get<std::string>();
  host.has_checked_links = true;
}

void AgentRanks::look_at_links() {
  if (complaints_.empty()) return;
  const auto is_open = [](const auto& host) {
    return host->link->is_joined() && host->ready && !host->has_checked_links;
  };
  const bool waits = std::any_of(hosts_.begin(), hosts_.end(), is_open);
  if (waits && now() - links_asked_ < kLinkSeconds + kUnheardSeconds) return;
  std::vector<HostLinks> links;
  for (const auto& host : hosts_)
    links.push_back(
        {host->name, host->link->is_joined() && host->link->silent_seconds() < kUnheardSeconds, host->link_faults});
  const std::optional<LostLink> link = broken_link(links);
  has_lost_link_ = has_lost_link_ || link;
  for (auto& [rank, report] : std::exchange(complaints_, {})) {
    report.lost_link = link;
    rank_ended(rank, std::move(report));
  }
}

std::string AgentRanks::link_listener(const std::string& name) const {
  for (const auto& host : hosts_)
    if (host->name == name && host->ready && host->link_port > 0)
      return host->address + ":" + std::to_string(host->link_port);
  return "";
}

void AgentRanks::rank_ended(int rank, RankReport report) {
  if (running_.erase(rank) == 0) return;
  frozen_.erase(rank);
  outputs_.close(rank);
  report.state = ProcessState::ended;
  report.doing = launch_.program.doing(rank);
  launch_.program.ended(rank, report.failed());
  events_.ended(rank, std::move(report));
}

bool AgentRanks::is_heard(int rank) const {
  const HostLink& link = *hosts_[static_cast<size_t>(host_of_.at(rank))]->link;
  return link.is_joined() && link.silent_seconds() < kUnheardSeconds;
}

void AgentRanks::stop_after_step() {
  stop_asked_ = true;
  if (!to_start_.empty()) {  // the remaining ranks will not be started
    std::vector<int> ranks;
    for (const RankPlace& place : to_start_) ranks.push_back(place.rank);
    for (const int rank : ranks) signal(rank, SIGTERM);
    return;
  }
  hold_gates();
}

/// Asks every host to let no rank start another step (step_gate.h) and to report the highest step that has started.
void AgentRanks::hold_gates() {
  for (const auto& host : hosts_) {
    host->highest_started.reset();
    send(*host, RankFrame::hold);
  }
}

/// Ends a hold once all hosts have replied. After a request to stop, the highest step that any rank has started becomes
/// the last one. For a save, the savers learn this step, and the ranks continue.
void AgentRanks::close_gates() {
  if ((!stop_asked_ && !holds_) || gates_closed_) return;
  uint64_t last = 0;
  for (const auto& host : hosts_) {
    if (host->link->is_lost()) continue;
    if (!host->highest_started) return;
    last = std::max(last, *host->highest_started);
  }
  if (!stop_asked_) {
    holds_ = false;
    saves_.gates_held(last);
    send_saves();
    for (const auto& host : hosts_) send(*host, RankFrame::release);
    return;
  }
  gates_closed_ = true;
  share_.stop_after(last);
  for (const auto& host : hosts_) send(*host, RankFrame::stop, -1, static_cast<int64_t>(last));
}

void AgentRanks::send_saves() {
  for (const SaveMessage& message : saves_.messages())
    for (const auto& host : hosts_)
      send(*host, RankFrame::save, message.rank, message.number, message.name, message.text);
}

// Files of ranks.

void AgentRanks::write_file(Host& host, const Message& message) {
  if (message.number < 0 || !owners_.may_write(host.index, host.ranks, message.name)) {
    if (!std::exchange(host.wrote_elsewhere, true) && events_.notice)
      events_.notice("ignored the file " + message.name + " of host " + host.name +
                     ", which its ranks may not write; programs should write to rank.<N>/ in the run's folder");
    return;
  }
  const auto kept = kept_bytes_.find(message.name);
  const int64_t offset = message.number + (kept == kept_bytes_.end() ? 0 : kept->second);
  received_.take(launch_.directory.file(message.name), offset, message.text, message.number == 0);
}

// Time.

void AgentRanks::look() {
  disk_.look();
  received_.retry();
  if (ending_) return;
  look_at_hosts();
  report_unreached();
  look_at_links();
  send_saves();
  if (stop_asked_ || holds_ || running_.empty() || !to_start_.empty() || !saves_.wants_hold()) return;
  holds_ = true;
  hold_gates();
}

void AgentRanks::look_at_hosts() {
  for (const auto& host : hosts_) {
    if (host->link->is_joined()) {
      std::string changes = share_.changes_for(host->index);
      if (!changes.empty()) send(*host, RankFrame::board, -1, 0, "", std::move(changes));
    }
    host->link->look(disk_.is_full());
  }
}

std::vector<std::vector<int>> AgentRanks::answering() const {
  std::vector<std::vector<int>> answering;
  for (const auto& host : hosts_)
    if (host->link->is_joined() && host->ready) answering.push_back(host->ranks);
  return answering;
}

/// Recovers state from the hosts as long as data arrives.
void AgentRanks::rescue() {
  const std::vector<std::vector<int>> answering = this->answering();
  if (answering.empty()) return;
  double since = now();
  for (auto came = saves_.rescue(answering); came && now() - since < kRescueSeconds;) {
    look_at_hosts();
    send_saves();
    loop_.run_for(std::chrono::milliseconds(5));
    loop_.restart();
    const auto more = saves_.rescue(answering);
    if (more != came) since = now();
    came = more;
  }
}

/// Ends the agents, which delete everything of the run on their hosts.
void AgentRanks::end() {
  if (has_lost_link_ || answering().size() < hosts_.size()) rescue();
  ending_ = true;
  for (const auto& host : hosts_) send(*host, RankFrame::end);
  const double deadline = now() + kRankFarewellSeconds;
  const auto is_done = [](const auto& host) { return host->link->is_lost() || !host->link->is_connected(); };
  while (now() < deadline && !std::all_of(hosts_.begin(), hosts_.end(), is_done)) {
    for (const auto& host : hosts_) {
      host->link->confirm();
      host->link->flush();
    }
    loop_.run_for(std::chrono::milliseconds(20));
    loop_.restart();
  }
  received_.retry();
  disk_.end();
}

}  // namespace trainctl::hosts
