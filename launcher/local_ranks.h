// The ranks that run on this host: their processes, bindings, guardians, pipes, and the error files that they write
// when they fail.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/guardian.h"
#include "launcher/log_collector.h"
#include "launcher/log_disk.h"
#include "launcher/rank_runner.h"
#include "launcher/spawn.h"
#include "launcher/supervisor.h"

namespace trainctl {

class LocalRanks : public RankRunner {
 public:
  /// Runs the ranks of launch.cluster, numbered by local_rank. Output goes to `sink`, or to the run's folder if it is
  /// null. All arguments must outlive it. Throws EnvError.
  LocalRanks(const Launch& launch, ProcessRunner& runner, boost::asio::io_context& loop, LogSink* sink = nullptr);
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;
  ~LocalRanks() override;

  void listen(Events events) override;
  void start(const RankPlace& place, int attempt) override;
  void signal(int rank, int signal) override;
  void stop_after_step() override { launch_.program.stop_after_step(); }
  bool is_frozen(int rank) override;
  std::optional<RankError> error_of(int rank) override;
  void restart(int attempt) override;
  void look() override;
  void end() override;
  bool disk_hangs() const override;

 private:
  void await_child();
  void reap();
  void rank_ended(int rank, const ProcessEnd& end);
  void report_leftovers(const LeftProcesses& left);
  void put_errors_aside(int attempt) const;
  bool killed_for_memory();
  size_t bound_cpus() const;
  bool ranks_explain() const { return launch_.limits.ranks_explain; }

  const Launch& launch_;
  ProcessRunner& runner_;
  Events events_;
  int64_t kills_explained_;
  const std::vector<RankBinding> bindings_;  ///< by local_rank
  const std::string mark_;
  Guardian guardian_;
  bool guarded_ = true;
  double stop_time_ = 0;           ///< unix seconds of the first signal to the ranks of this attempt; 0: not yet
  bool reading_hangs_ = false;     ///< the disk did not respond when a rank's error was read
  std::unique_ptr<LogDisk> disk_;  ///< null if a sink was passed
  LogCollector logs_;
  boost::asio::signal_set children_;
  /// Expires with this object. Cancellation does not reach handlers that are already in the loop's queue.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<int, int> pids_;
  std::map<int, int> rank_of_pid_;
};

}  // namespace trainctl
