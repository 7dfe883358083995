// One run, from its workload to the exit code.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cli/run/launch/background.h"
#include "cli/run/launch/elastic.h"
#include "cli/run/launch/launcher_log.h"
#include "cli/run/launch/rank_memory.h"
#include "cli/run/launch/run_end.h"
#include "cli/run/launch/run_observer.h"
#include "cli/run/launch/workload.h"
#include "launcher/hosts/agent_ranks.h"
#include "launcher/hosts/copies.h"
#include "launcher/hosts/transport.h"
#include "launcher/registry.h"
#include "launcher/run_directory.h"
#include "launcher/spawn.h"

namespace trainctl {

/// Planning functions for launch.elastic. Either both are set or neither.
struct Replan {
  /// Plans a job to resume from a checkpoint; "": from the beginning of the run.
  std::function<std::unique_ptr<Workload>(JobSpec spec, const std::string& checkpoint)> now;
  /// Plans a job in advance, so that `now` is faster. Throws SpecError if there is no plan.
  std::function<void(JobSpec spec)> ahead;
};

class Run {
 public:
  /// `shown`: the ranks whose output the user sees. `background`: null if not detached. `transport`: how the job's
  /// hosts are reached; null selects the job's. `replan`: for launch.elastic; unset: a lost host ends the run. `loop`
  /// and `background` must outlive the Run. Throws EnvError.
  Run(std::unique_ptr<Workload> workload, std::vector<int> shown, boost::asio::io_context& loop,
      const MakeObserver& make_observer, Background* background,
      std::shared_ptr<const hosts::Transport> transport = nullptr, Replan replan = {});
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const RunDirectory& directory() const { return directory_; }
  /// Runs until all ranks have ended; returns the exit code.
  int operator()();

 private:
  using Clock = std::chrono::steady_clock;

  int supervise_ranks();
  void record_failure(const std::string& what, int exit_code) const;
  JobSpec resolved_job() const;
  JobSpec job_on_hosts() const;
  void write_job() const;
  void register_run();
  void watch_signals();
  Launch launch();
  Outcome run_on_hosts();
  Outcome supervise_hosts(Launch& launch);
  bool change_hosts(const Outcome& outcome);
  void write_rescued();
  void restart_on_hosts(hosts::AgentRanks& ranks, const std::function<void()>& prepare);
  void note_progress();
  bool is_time_to_take_back() const;
  void plan_ahead();
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void tick();
  void show(int rank, std::string_view line);
  void let_go();
  void report_news();
  LiveStatus status();
  std::string processes_text() const;
  int finish(Outcome outcome);
  void gather_files();
  std::string report_of_workload() const;
  std::string write_outcome(const Outcome& outcome, const std::string& report, const RunResult& result) const;

  const JobSpec& spec() const { return workload_->spec(); }

  std::unique_ptr<Workload> workload_;
  const Replan replan_;
  const Clock::time_point start_ = Clock::now();
  const std::vector<int> shown_;
  boost::asio::io_context& loop_;
  Background* background_;
  const std::shared_ptr<const hosts::Transport> transport_;
  Cluster cluster_;
  const RunDirectory directory_;
  NewRunFolder folder_;  ///< kept once a rank has started
  const RunLock lock_;
  const std::unique_ptr<LauncherLog> log_;  ///< log of a detached run; null otherwise
  std::vector<int> pids_;                   ///< by rank, as in LiveStatus
  const std::unique_ptr<RunObserver> view_;
  boost::asio::signal_set signals_;
  std::optional<Registration> registration_;
  Clock::time_point published_;
  int attempt_ = 0;
  int first_attempt_ = 0;  ///< first attempt with the current hosts
  std::optional<Elastic> elastic_;
  std::set<std::string> planned_ahead_;             ///< hosts for whose loss there is a plan
  std::optional<std::vector<hosts::Copy>> copies_;  ///< launch.copy, of launch.hosts
  RankMemory memory_;
  int started_ = 0;  ///< number of started ranks of this attempt
  uint64_t unheard_ = 0;
  bool stopping_ = false;
  int stop_signals_ = 0;  ///< signals received while the ranks ran
};

}  // namespace trainctl
