// launch.elastic: chooses the hosts of a run after each loss, and records what the changes cost.
#include "cli/run/launch/elastic.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/planning/unequal_ranks.h"
#include "engine/spec/parse.h"
#include "engine/spec/replicas.h"
#include "launcher/hosts/link_check.h"
#include "launcher/hosts/scripts.h"
#include "launcher/rank_error.h"

namespace trainctl {
namespace {

/// Pause before a lost host is probed again. It doubles with each loss of the host, up to the maximum.
constexpr double kFirstWaitSeconds = 5, kLongestWaitSeconds = 300, kAnswerSeconds = 10;

/// A change must promise steps that are this much shorter, since it costs a restart.
constexpr double kWorthwhile = 0.9;
/// Measured speeds that vary must not stop the run again and again.
constexpr int kMostDivisions = 4;

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

bool Elastic::note_work(const Cluster& cluster, const Ints& of_ranks, const std::vector<double>& work) {
  const double limit = spec_.launch.elastic->straggler;
  if (limit == 0 || divisions_ >= kMostDivisions || spec_.parallel.local_steps > 0 || spec_.parallel.stages > 1)
    return false;
  struct Measured {  ///< the slowest of its ranks counts, since all get equal shares
    double micro_batches = 0, time = 0, speed = std::numeric_limits<double>::infinity();
  };
  std::map<std::string, Measured> of_hosts;
  for (const RankPlace& place : cluster.places) {
    const auto rank = static_cast<size_t>(place.rank);
    const double done = of_ranks.empty() ? 1.0 : static_cast<double>(of_ranks.at(rank));
    Measured& host = of_hosts[place.host];
    host.micro_batches += done;
    host.time = std::max(host.time, work.at(rank));
    host.speed = std::min(host.speed, done / std::max(work.at(rank), 1e-3));
  }
  std::map<std::string, double> speeds;
  double shortest = std::numeric_limits<double>::infinity(), longest = 0, micro_batches = 0;
  std::string slow;
  for (const auto& [name, host] : of_hosts) {
    speeds[name] = host.speed;
    micro_batches += host.micro_batches;
    shortest = std::min(shortest, host.time);
    if (host.time <= longest) continue;
    longest = host.time;
    slow = name;
  }
  const double ratio = longest / std::max(shortest, 1e-3);
  if (of_hosts.size() < 2 || ratio < limit) return false;
  std::vector<HostRanks> left;
  for (const HostRanks& host : hosts_)
    if (of_hosts.contains(host.host)) left.push_back(host);
  const std::map<std::string, double> before = std::exchange(speeds_, speeds);
  if (shortest_step(left, micro_batches) > kWorthwhile * longest) {
    speeds_ = before;
    return false;
  }
  ++divisions_;
  straggler_ = fmt::format("host {} takes {:.1f} times as long for its work", slow, ratio);
  return true;
}

double Elastic::shortest_step(const std::vector<HostRanks>& left, double micro_batches) const {
  double shortest = std::numeric_limits<double>::infinity();
  if (const std::vector<double> speeds = speeds_on(left); !speeds.empty()) {
    const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    if (const auto divided = divide_micro_batches(spec_.dataset.batch, most_rows(left), speeds))
      shortest = micro_batches / all * divided->share;
  }
  const std::string slow = host_too_slow(left);
  if (slow.empty()) return shortest;
  double ranks = 0, slowest = std::numeric_limits<double>::infinity();
  for (const HostRanks& host : left) {
    if (host.host == slow) continue;
    ranks += host.ranks;
    slowest = std::min(slowest, speeds_.at(host.host));
  }
  return std::min(shortest, micro_batches / ranks / slowest);
}

int64_t Elastic::most_rows(const std::vector<HostRanks>& left) const {
  const JobSpec job = job_on(left);
  return std::max<int64_t>(1, job.dataset.batch / (int64_t{job.launch.ranks} * job.parallel.micro_batches));
}

std::vector<double> Elastic::speeds_on(const std::vector<HostRanks>& left) const {
  const ParallelSpec& parallel = spec_.parallel;
  if (parallel.mode != ParallelMode::data_parallel || parallel.optimizer_shard.level > 1) return {};
  std::vector<double> speeds;
  for (const HostRanks& host : left) {
    const auto known = speeds_.find(host.host);
    if (known == speeds_.end()) return {};
    speeds.insert(speeds.end(), static_cast<size_t>(host.ranks), known->second);
  }
  return speeds;
}

std::string Elastic::host_too_slow(const std::vector<HostRanks>& left) const {
  if (left.size() < 2) return "";
  std::vector<std::pair<double, const HostRanks*>> by_speed;
  int ranks = 0;
  for (const HostRanks& host : left) {
    const auto known = speeds_.find(host.host);
    if (known == speeds_.end()) return "";
    by_speed.emplace_back(known->second, &host);
    ranks += host.ranks;
  }
  std::sort(by_speed.begin(), by_speed.end());
  const auto [slowest, slow] = by_speed[0];
  const int others = ranks - slow->ranks;
  if (others < spec_.launch.elastic->min_ranks) return "";
  return slowest * ranks < kWorthwhile * by_speed[1].first * others ? slow->host : "";
}

std::vector<JobSpec> Elastic::jobs(std::string& fault, const std::string& without) const {
  std::vector<HostRanks> left;
  for (const HostRanks& host : hosts_)
    if (!lost_.contains(host.host) && host.host != without) left.push_back(host);
  std::vector<JobSpec> jobs;
  const std::vector<double> speeds = speeds_on(left);
  if (!speeds.empty()) {
    JobSpec job = job_on(left);
    if (const auto divided = divide_micro_batches(job.dataset.batch, most_rows(left), speeds)) {
      job.parallel.rank_micro_batches = divided->of_ranks;
      job.parallel.micro_batches = 1;  // their sum
      if (job.launch.machines.size() > 1) job.launch.machines.resize(1);
      try {
        jobs.push_back(parse_job(to_yaml(job), spec_.file));
      } catch (const SpecError& error) {
        fault = error.what();
      }
    }
  }
  if (const std::string slow = host_too_slow(left); !slow.empty()) {
    std::vector<HostRanks> others = left;
    std::erase_if(others, [&](const HostRanks& host) { return host.host == slow; });
    for (JobSpec& job : jobs_on(std::move(others), fault)) jobs.push_back(std::move(job));
  }
  for (JobSpec& job : jobs_on(std::move(left), fault)) jobs.push_back(std::move(job));
  return jobs;
}

std::vector<JobSpec> Elastic::jobs_on(std::vector<HostRanks> left, std::string& fault) const {
  std::vector<JobSpec> jobs;
  int ranks = 0;
  for (const HostRanks& host : left) ranks += host.ranks;
  for (; ranks >= spec_.launch.elastic->min_ranks && !left.empty(); --ranks) {
    try {
      jobs.push_back(parse_job(to_yaml(job_on(left)), spec_.file));
    } catch (const SpecError& error) {  // fields that need another number of ranks, such as stages that must divide it
      fault = error.what();
    }
    if (--left.back().ranks == 0) left.pop_back();
  }
  return jobs;
}

JobSpec Elastic::job_on(const std::vector<HostRanks>& left) const {
  JobSpec job = spec_;
  job.launch.hostfile.clear();
  job.launch.hosts.clear();
  job.launch.machines.clear();
  job.launch.ranks = 0;
  const std::vector<std::string>& machines = spec_.launch.machines;
  size_t first = 0;  // rank of the whole run
  for (size_t h = 0; h < hosts_.size(); first += static_cast<size_t>(hosts_[h++].ranks)) {
    const auto host =
        std::find_if(left.begin(), left.end(), [&](const HostRanks& l) { return l.host == hosts_[h].host; });
    if (host == left.end()) continue;
    job.launch.hosts.push_back(fmt::format("{}:{}", host->host, host->ranks));
    job.launch.ranks += host->ranks;
    if (machines.size() == hosts_.size()) job.launch.machines.push_back(machines[h]);
    if (machines.size() != hosts_.size() && machines.size() > 1)
      for (int rank = 0; rank < host->ranks; ++rank)
        job.launch.machines.push_back(machines[first + static_cast<size_t>(rank)]);
  }
  if (machines.size() < 2) job.launch.machines = machines;
  if (!spec_.parallel.rank_micro_batches.empty()) {  // the speeds of the other ranks divide the work again
    const int64_t rows = job.dataset.batch / spec_.parallel.micro_batches;
    job.parallel.rank_micro_batches.clear();
    job.parallel.micro_batches = static_cast<int>(even_micro_batches(job.dataset.batch, rows, job.launch.ranks));
  }
  // One replica per host stays one per host.
  if (job.parallel.local_steps > 0 && num_replicas(spec_) == static_cast<int>(spec_.launch.hosts.size()))
    job.parallel.replicas = static_cast<int>(left.size());
  return job;
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
