// One run, from its workload to the exit code.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "cli/launch/background.h"
#include "cli/launch/launcher_log.h"
#include "cli/launch/workload.h"
#include "cli/render/run_end.h"
#include "cli/render/run_view.h"
#include "launcher/hosts/transport.h"
#include "launcher/registry.h"
#include "launcher/run_directory.h"
#include "launcher/spawn.h"

namespace trainctl {

class Run {
 public:
  /// `shown`: the ranks whose lines the user sees. `background`: null if not detached. All must outlive the Run.
  /// `transport`: how the job's hosts are reached; null: as the job says. Throws EnvError.
  Run(Workload& workload, std::vector<int> shown, boost::asio::io_context& loop, Background* background,
      std::shared_ptr<const hosts::Transport> transport = nullptr);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const RunDirectory& directory() const { return directory_; }
  /// Runs until all ranks have ended; returns the exit code.
  int operator()();

 private:
  using Clock = std::chrono::steady_clock;

  JobSpec resolved_job() const;
  void write_job() const;
  void register_run();
  void watch_signals();
  Launch launch();
  Outcome supervise_hosts(Launch& launch);
  void tick();
  void show(int rank, std::string_view line);
  void let_go();
  void tell_news();
  LiveStatus status();
  std::string processes_text() const;
  void finish(const Outcome& outcome);
  std::string report_of_workload() const;
  std::string write_outcome(const Outcome& outcome, const std::string& report) const;

  Workload& workload_;
  const JobSpec& spec_;
  const std::vector<int> shown_;
  boost::asio::io_context& loop_;
  Background* background_;
  const std::shared_ptr<const hosts::Transport> transport_;
  const Cluster cluster_;
  const RunDirectory directory_;
  const RunLock lock_;
  const std::unique_ptr<LauncherLog> log_;  ///< of a detached run; null otherwise
  std::vector<int> pids_;                   ///< by rank, as in LiveStatus
  RunView view_;
  boost::asio::signal_set signals_;
  std::optional<Registration> registration_;
  Clock::time_point published_;
  int attempt_ = 0;
  int started_ = 0;  ///< ranks of this attempt
  uint64_t unheard_ = 0;
  bool stopping_ = false;
  int stop_signals_ = 0;  ///< while the ranks ran
};

}  // namespace trainctl
