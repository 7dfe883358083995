// See elastic.h.
#include "cli/run/launch/elastic.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "engine/spec/replicas.h"
#include "launcher/hosts/link_check.h"
#include "launcher/hosts/scripts.h"
#include "launcher/rank_error.h"

namespace trainctl {
namespace {

/// Pause before a lost host is probed again. It doubles with each loss of the host, up to the maximum.
constexpr double kFirstWaitSeconds = 5, kLongestWaitSeconds = 300, kAnswerSeconds = 10;

std::string steps_text(int64_t steps) { return fmt::format("{} {}", steps, steps == 1 ? "step" : "steps"); }

}  // namespace

Elastic::Elastic(const JobSpec& spec, std::shared_ptr<const hosts::Transport> transport)
    : spec_(spec), transport_(transport ? std::move(transport) : hosts::transport_of(spec.launch)) {
  for (const RankPlace& place : several_hosts(spec).places)
    if (place.local_rank == 0) hosts_.push_back({place.host, place.local_ranks});
}

Elastic::~Elastic() {
  for (auto& [host, lost] : lost_) drop_probe(lost);
}

std::string Elastic::note_lost(const Cluster& cluster, const std::vector<RankReport>& reports) {
  std::vector<std::string> why;
  for (const RankPlace& place : cluster.places) {
    const RankReport& report = reports[static_cast<size_t>(place.rank)];
    if (report.error && report.error->kind == ErrorKind::audit && !lost_.contains(place.host)) {
      why.push_back(
          fmt::format("host {} computes incorrectly (rank {}: {})", place.host, place.rank, report.error->what));
      note(place.host).computes_incorrectly = true;
      continue;
    }
    // A host that was reachable before and is not at the next start is lost too.
    const std::string unreached = "host " + place.host + " ";
    const bool did_not_start = !changes_.empty() && report.start_error.starts_with(unreached);
    if ((report.host_lost.empty() && !did_not_start) || lost_.contains(place.host)) continue;
    why.push_back(did_not_start ? report.start_error : unreached + report.host_lost);
    note(place.host);
  }
  const auto broken =
      std::find_if(reports.begin(), reports.end(), [](const auto& r) { return r.lost_link.has_value(); });
  if (why.empty() && broken != reports.end()) {
    const LostLink& link = *broken->lost_link;
    const std::string left = host_to_leave(link);
    note(left).beyond = left == link.from ? link.to : link.from;
    why.push_back(fmt::format("the link host {} <-> host {} is broken: {}; excluding host {}", link.from, link.to,
                              link.fault, left));
  }
  if (!why.empty()) back_.clear();  // they are probed once more
  return join(why, ", ");
}

Elastic::Lost& Elastic::note(const std::string& host) {
  const int losses = ++losses_[host];
  Lost& lost = lost_[host];
  lost.since = lost.tried = steady_seconds();
  lost.wait = std::min(kLongestWaitSeconds, kFirstWaitSeconds * static_cast<double>(1LL << std::min(losses - 1, 10)));
  return lost;
}

/// Chooses the host with more broken links, then the one with fewer ranks, then the later one.
std::string Elastic::host_to_leave(const LostLink& link) const {
  if (!link.worse.empty()) return link.worse;
  const auto ranks_of = [this](const std::string& name) {
    const auto host = std::find_if(hosts_.begin(), hosts_.end(), [&](const HostRanks& h) { return h.host == name; });
    return host == hosts_.end() ? 0 : host->ranks;
  };
  return ranks_of(link.from) < ranks_of(link.to) ? link.from : link.to;
}

std::string Elastic::take_back() {
  for (const std::string& host : back_) {
    drop_probe(lost_.at(host));
    lost_.erase(host);
  }
  const std::string names = join(back_, ", ");
  const bool is_one = back_.size() == 1;
  back_.clear();
  return names.empty() ? "" : (is_one ? "host " : "hosts ") + names + (is_one ? " is back" : " are back");
}

std::vector<JobSpec> Elastic::jobs(std::string& fault, const std::string& without) const {
  std::vector<HostRanks> left;
  int ranks = 0;
  for (const HostRanks& host : hosts_) {
    if (lost_.contains(host.host) || host.host == without) continue;
    left.push_back(host);
    ranks += host.ranks;
  }
  std::vector<JobSpec> jobs;
  for (; ranks >= spec_.launch.elastic->min_ranks && !left.empty(); --ranks) {
    JobSpec job = spec_;
    job.launch.hostfile.clear();
    job.launch.hosts.clear();
    for (const HostRanks& host : left) job.launch.hosts.push_back(fmt::format("{}:{}", host.host, host.ranks));
    job.launch.ranks = ranks;
    // One replica per host stays one per host.
    if (job.parallel.local_steps > 0 && num_replicas(spec_) == static_cast<int>(spec_.launch.hosts.size()))
      job.parallel.replicas = static_cast<int>(left.size());
    try {
      jobs.push_back(parse_job(to_yaml(job), spec_.file));
    } catch (const SpecError& error) {  // fields that need another number of ranks, such as stages that must divide it
      fault = error.what();
    }
    if (--left.back().ranks == 0) left.pop_back();
  }
  return jobs;
}

void Elastic::look() {
  for (auto& [host, lost] : lost_) {
    if (!lost.computes_incorrectly && std::find(back_.begin(), back_.end(), host) == back_.end()) ask(host, lost);
  }
}

/// A script that prints kReachedLine if the host can be used again; empty: it cannot be probed now.
std::string Elastic::question(const Lost& lost) {
  if (lost.beyond.empty() || lost_.contains(lost.beyond)) return std::string("echo ") + hosts::kReachedLine;
  const std::string listener = listener_of_ ? listener_of_(lost.beyond) : "";
  if (listener.empty()) return "";
  if (!bundle_) bundle_ = hosts::bundle_of_this_program();
  return hosts::reach_script(*bundle_, listener);
}

void Elastic::ask(const std::string& host, Lost& lost) {
  const double now = steady_seconds();
  if (lost.probe.pid <= 0) {
    if (now - lost.tried < lost.wait) return;
    lost.tried = now;
    lost.output.clear();
    try {
      const std::string script = question(lost);
      if (script.empty()) return;
      lost.probe = transport_->run(host, script);
    } catch (const EnvError&) {
      return;  // probed again later
    }
    fcntl(lost.probe.out, F_SETFL, O_NONBLOCK);
    return;
  }
  std::array<char, 512> buffer{};
  const ssize_t got = read(lost.probe.out, buffer.data(), buffer.size());
  if (got > 0) lost.output.append(buffer.data(), static_cast<size_t>(got));
  const bool is_back = lost.output.find(hosts::kReachedLine) != std::string::npos;
  if (is_back) back_.push_back(host);
  if (is_back || got == 0 || now - lost.tried > kAnswerSeconds) drop_probe(lost);
}

void Elastic::drop_probe(Lost& lost) {
  for (int* fd : {&lost.probe.in, &lost.probe.out, &lost.probe.err})
    if (*fd >= 0) close(std::exchange(*fd, -1));
  if (lost.probe.pid <= 0) return;
  kill(lost.probe.pid, SIGKILL);
  waitpid(std::exchange(lost.probe.pid, -1), nullptr, 0);
}

std::string Elastic::progressed(int64_t finished_steps, double seconds) {
  if (finished_steps <= 0 || finished_steps == last_step_) return "";
  HostChange* change = changes_.empty() || changes_.back().paused_seconds > 0 ? nullptr : &changes_.back();
  if (change != nullptr && finished_steps <= change->resumed_step) return "";
  if (first_seconds_ < 0) first_seconds_ = seconds;
  const auto steps = static_cast<double>(finished_steps - last_step_);
  if (change == nullptr && last_step_ > 0 && steps > 0) step_seconds_ = (seconds - last_seconds_) / steps;
  last_step_ = finished_steps;
  last_seconds_ = seconds;
  if (change == nullptr) return "";
  change->paused_seconds = std::max(1e-3, seconds - change->begin_seconds);
  const int64_t redone = change->last_step - change->resumed_step;
  change->redone_seconds = static_cast<double>(redone) * step_seconds_;
  const std::string ranks = change->ranks == change->ranks_before
                                ? ""
                                : fmt::format(" on {} ranks instead of {}", change->ranks, change->ranks_before);
  return fmt::format("{}: resumed after step {}{}; lost {} and {:.1f} s", change->why, change->resumed_step, ranks,
                     steps_text(redone), change->paused_seconds);
}

std::optional<double> Elastic::goodput() const {
  const double all = last_seconds_ - first_seconds_;
  if (first_seconds_ < 0 || all <= 0) return std::nullopt;
  double lost = 0;
  for (const HostChange& change : changes_) lost += change.paused_seconds + change.redone_seconds;
  return std::clamp(1 - lost / all, 0.0, 1.0);
}

nlohmann::ordered_json Elastic::report() const {
  auto changes = nlohmann::ordered_json::array();
  for (const HostChange& c : changes_)
    changes.push_back({{"why", c.why},
                       {"seconds", c.begin_seconds},
                       {"ranks_before", c.ranks_before},
                       {"ranks", c.ranks},
                       {"last_step", c.last_step},
                       {"resumed_step", c.resumed_step},
                       {"paused_seconds", c.paused_seconds},
                       {"redone_seconds", c.redone_seconds}});
  nlohmann::ordered_json json = {{"changes", changes}};
  if (const auto good = goodput()) json["goodput"] = *good;
  return json;
}

std::string Elastic::summary() const {
  if (changes_.empty() || !goodput()) return "";
  int64_t redone = 0;
  double paused = 0;
  for (const HostChange& change : changes_) {
    redone += change.last_step - change.resumed_step;
    paused += change.paused_seconds;
  }
  return fmt::format("goodput {:.0f} %: interrupted {} times, {} repeated, {:.1f} s without progress", 100 * *goodput(),
                     changes_.size(), steps_text(redone), paused);
}

}  // namespace trainctl
