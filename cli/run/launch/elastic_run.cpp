// launch.elastic: a run that continues on the remaining hosts when a host is lost, and takes hosts back that respond
// again.
#include "cli/run/launch/elastic_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/run/launch/network_on_hosts.h"
#include "engine/base/error.h"
#include "launcher/failure_report.h"

namespace trainctl {

ElasticRun::ElasticRun(std::unique_ptr<Workload> workload, RunDisplayOptions display, boost::asio::io_context& loop,
                       std::shared_ptr<const hosts::Transport> transport, Replan replan)
    : HostsRun(std::move(workload), std::move(display), loop, std::move(transport)),
      replan_(std::move(replan)),
      elastic_(spec(), this->transport()) {
  elastic_.use_listeners(
      [this](const std::string& host) { return ranks() == nullptr ? "" : ranks()->link_listener(host); });
}

Outcome ElasticRun::run_ranks() {
  std::vector<FailedAttempt> failed_attempts;
  for (;;) {
    allow_rescue(!is_stopping());
    takes_back_ = false;
    const double before = seconds();
    Outcome outcome = supervise_hosts(true);
    for (FailedAttempt& attempt : outcome.failed_attempts) {
      attempt.seconds += before;
      failed_attempts.push_back(attempt);
    }
    outcome.seconds += before;
    outcome.failed_attempts = failed_attempts;
    const std::string cause = cause_line(outcome.reports, outcome.cause, cluster());
    if (!change_hosts(outcome)) return outcome;
    if (!cause.empty()) failed_attempts.push_back({outcome.cause, cause, outcome.seconds});
  }
}

/// Plans the job for the remaining or returned hosts. Returns false if the run is over.
bool ElasticRun::change_hosts(const Outcome& outcome) {
  loop().restart();
  loop().poll();  // runs the handlers of cancelled operations
  if (outcome.signal != 0 || is_stopping()) return false;
  const RunResult result = reports().result();
  std::string why = elastic_.note_lost(cluster(), outcome.reports);
  const bool has_stopped = outcome.exit_code == kExitDone && result.step < result.steps;
  if (const std::string straggler = elastic_.take_straggler(); why.empty() && has_stopped) why = straggler;
  if (why.empty() && has_stopped) why = elastic_.take_back();
  if (why.empty()) return false;
  note_progress();
  write_rescued();
  const int before = cluster().num_ranks();
  std::string fault;
  std::unique_ptr<Workload> next = plan_for_hosts(fault);
  if (!next) {
    view().notice(why + "; the run ends: no plan for the remaining hosts has at least " +
                  std::to_string(spec().launch.elastic->min_ranks) + " ranks" + (fault.empty() ? "" : ":\n" + fault));
    return false;
  }
  replace(std::move(next));
  planned_ahead_.clear();
  note_change(why, before);
  view().notice(why + "; replanned for " + processes_text(spec().launch.ranks, spec().servers()) +
                ", resuming after step " + std::to_string(reports().first_step()));
  return true;
}

/// Plans the job for as many of the ranks of the available hosts as possible; null: there is no plan, because of
/// `fault`.
std::unique_ptr<Workload> ElasticRun::plan_for_hosts(std::string& fault) {
  std::vector<std::string> notices;
  std::string checkpoint;
  try {
    checkpoint = find_resume_point(spec(), {.from = directory().path()}, notices).path;
  } catch (const EnvError&) {  // no checkpoint is complete: the run starts from the beginning
  }
  for (JobSpec& job : elastic_.jobs(fault)) {
    try {
      auto next = replan_.now(std::move(job), checkpoint);
      next->prepare(attempt() + 1, directory());
      return next;
    } catch (const SpecError& error) {  // the network cannot be sharded over that many ranks
      fault = error.what();
    } catch (const EnvError& error) {
      fault = error.what();
      break;
    }
  }
  return nullptr;
}

/// A rank has failed but its host is healthy: restarts on the same hosts, from the state that their agents have.
void ElasticRun::on_restart(int attempt) {
  note_progress();
  ranks()->rescue();
  write_rescued();
  HostsRun::on_restart(attempt);
  note_change("all ranks were restarted", cluster().num_ranks());
  takes_back_ = false;  // the ranks that were asked to stop have ended for another reason
}

void ElasticRun::note_change(const std::string& why, int ranks_before) {
  const int64_t first_step = reports().first_step();
  elastic_.changed({.why = why,
                    .ranks_before = ranks_before,
                    .ranks = cluster().num_ranks(),
                    .last_step = std::max(elastic_.last_step(), first_step),
                    .resumed_step = first_step,
                    .begin_seconds = elastic_.last_step_seconds()});
}

void ElasticRun::allow_rescue(bool is_allowed) {
  if (NetworkOnHosts* network = workload().on_hosts()) network->allow_rescue(is_allowed);
}

/// Saves the recovered state once the ranks have ended.
void ElasticRun::write_rescued() {
  for (const std::string& line : reports().finish({})) view().news(line);
  NetworkOnHosts* const network = workload().on_hosts();
  if (network == nullptr) return;
  try {
    if (const std::string line = network->write_rescued(); !line.empty()) view().news(line);
  } catch (const EnvError& error) {
    view().notice(std::string("cannot recover the state from the memory of the hosts: ") + error.what());
  }
}

void ElasticRun::look() {
  elastic_.look();
  plan_ahead();
  note_progress();
  // Hosts are taken back, and work is divided again, once the current hosts have finished a step.
  if (takes_back_ || !has_progressed()) return;
  const std::vector<double> work = reports().uneven_work();
  const bool is_slow = !work.empty() && elastic_.note_work(cluster(), spec().parallel.rank_micro_batches, work);
  if (!is_slow && !elastic_.is_any_back()) return;
  takes_back_ = true;
  ranks()->stop_after_step();  // this saves the last state
}

void ElasticRun::note_progress() {
  const std::string line = elastic_.progressed(reports().result().step, seconds());
  if (!line.empty()) view().notice(line);
}

/// Returns whether the ranks of the current hosts have finished a step.
bool ElasticRun::has_progressed() { return reports().is_up() && reports().result().step > reports().first_step(); }

/// Plans for the loss of each host, one per tick, once the ranks train; this takes only the launcher's time.
void ElasticRun::plan_ahead() {
  if (!has_progressed()) return;
  for (const RankPlace& place : cluster().places) {
    if (place.local_rank != 0 || !planned_ahead_.insert(place.host).second) continue;
    std::string fault;
    for (JobSpec& job : elastic_.jobs(fault, place.host)) {
      try {
        return replan_.ahead(std::move(job));
      } catch (const SpecError&) {  // the next job has fewer ranks
      } catch (const EnvError&) {   // reported if the plan is needed later
        return;
      }
    }
    return;
  }
}

}  // namespace trainctl
