// One run, from its workload to the exit code. What starts and restarts its ranks depends on where they run: LocalRun,
// HostsRun (launch.hosts) and ElasticRun (launch.elastic).
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/run/launch/memory_monitor.h"
#include "cli/run/launch/run_display.h"
#include "cli/run/launch/trackers.h"
#include "cli/run/launch/workload.h"
#include "launcher/hosts/transport.h"
#include "launcher/rank_program.h"
#include "launcher/run_directory.h"
#include "launcher/supervisor.h"

namespace trainctl {

/// Planning functions for launch.elastic. Either both are set or neither.
struct Replan {
  /// Plans a job to resume from a checkpoint; "": from the beginning of the run.
  std::function<std::unique_ptr<Workload>(JobSpec spec, const std::string& checkpoint)> now;
  /// Plans a job in advance, so that `now` is faster. Throws SpecError if there is no plan.
  std::function<void(JobSpec spec)> ahead;
};

class Run : public LaunchObserver {
 public:
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const RunDirectory& directory() const { return directory_; }
  /// Starts these trackers with the first rank.
  void track(std::unique_ptr<TrackerProcesses> trackers) { trackers_ = std::move(trackers); }
  /// Runs until all ranks have ended; returns the exit code.
  int operator()();

  // LaunchObserver.
  void on_rank_started(int rank, int pid) override;
  void on_restart(int attempt) override;
  void on_line(int rank, std::string_view line, bool is_error) override;
  void on_notice(std::string_view message) override { display_.view().notice(message); }
  void on_tick() override;

 protected:
  Run(std::unique_ptr<Workload> workload, RunDisplayOptions display, boost::asio::io_context& loop);

  /// Runs the ranks to their end.
  virtual Outcome run_ranks() = 0;
  /// Called at each tick, before the status is shown.
  virtual void look() {}
  /// Called when the user has asked the ranks to stop.
  virtual void stop_requested() {}
  /// Fields of outcome.json, and a line for the end of the run, about changes of its hosts.
  virtual nlohmann::ordered_json changes() const;
  virtual std::string changes_line() const { return ""; }

  Launch launch();
  /// Continues with another workload, on other hosts, as the next attempt, for which it is prepared.
  void replace(std::unique_ptr<Workload> workload);

  Workload& workload() { return *workload_; }
  WorkloadReports& reports() { return workload_->reports(); }
  const JobSpec& spec() const { return workload_->spec(); }
  const Cluster& cluster() const { return cluster_; }
  RunObserver& view() { return display_.view(); }
  boost::asio::io_context& loop() { return loop_; }
  int attempt() const { return attempt_; }
  int first_attempt() const { return first_attempt_; }
  bool is_stopping() const { return stop_signals_ > 0; }
  /// Seconds since the run began.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  int supervise_ranks();
  void watch_signals();
  void report_news();
  LiveStatus status();
  bool have_started() const;
  int finish(Outcome outcome);
  std::vector<std::string> finish_workload();
  void finish_trackers();
  bool is_hurried();
  void add_validations(RunResult& result) const;
  void show_end(const Outcome& outcome, const RunResult& result, const std::string& report);
  std::string summary();

  std::unique_ptr<Workload> workload_;
  const Clock::time_point start_ = Clock::now();
  boost::asio::io_context& loop_;
  Cluster cluster_;
  const RunDirectory directory_;
  NewRunFolder folder_;  ///< kept once a rank has started
  const RunLock lock_;
  RunDisplay display_;
  boost::asio::signal_set signals_;
  std::vector<int> pids_;  ///< by rank, as in LiveStatus
  int attempt_ = 0;
  int first_attempt_ = 0;                       ///< first attempt with the current hosts
  int started_ = 0;                             ///< number of started ranks of this attempt
  int stop_signals_ = 0;                        ///< signals received while the ranks ran
  int late_signals_ = 0;                        ///< signals received since
  std::unique_ptr<TrackerProcesses> trackers_;  ///< null: none
  MemoryMonitor memory_;
};

/// `transport`: how the job's hosts are reached; null selects the job's. `replan`: for launch.elastic; unset: a lost
/// host ends the run. `loop` must outlive the run. Throws EnvError.
std::unique_ptr<Run> make_run(std::unique_ptr<Workload> workload, RunDisplayOptions display,
                              boost::asio::io_context& loop,
                              std::shared_ptr<const hosts::Transport> transport = nullptr, Replan replan = {});

}  // namespace trainctl
