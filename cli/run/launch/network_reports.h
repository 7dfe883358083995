// Reports of a network about its run: progress, states of ranks, and, at the end, its result. Read from the board of
// the current attempt.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/launch/device_choice.h"
#include "cli/run/launch/network_on_hosts.h"
#include "cli/run/launch/rank_states.h"
#include "cli/run/launch/stopped_ranks.h"
#include "cli/run/launch/workload.h"
#include "cli/run/saves/checkpoints.h"
#include "engine/compile/rank_classes.h"
#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/shared_memory.h"

namespace trainctl {

class NetworkReports : public WorkloadReports {
 public:
  /// All arguments must outlive it. `gpus`: by rank; empty: the ranks run on CPUs, or on other hosts. `on_hosts`: null
  /// without launch.hosts.
  NetworkReports(const PlannedJob& job, const RankClasses& classes, Checkpoints& checkpoints,
                 const WorkloadOptions& options, const std::vector<CudaDevice>& gpus, const NetworkOnHosts* on_hosts);

  /// Begins with an attempt, whose ranks report on `board`.
  void begin(std::shared_ptr<const SharedMemory> board, const RunDirectory& directory);
  void rank_started(int rank, int pid) { stopped_.started(rank, pid); }
  void rank_ended(int rank) { stopped_.ended(rank); }
  /// See RankProgram::stopped_at.
  std::optional<int64_t> stopped_at() const;

  bool is_up() const override;
  void describe(LiveStatus& status) override;
  std::vector<double> uneven_work() const override { return uneven_work_; }
  std::vector<std::string> news() override;
  int64_t first_step() const override { return checkpoints_.first_step(); }
  RunResult result() const override;
  std::vector<std::string> finish(const std::function<bool()>& is_hurried) override {
    return checkpoints_.finish(is_hurried);
  }
  nlohmann::ordered_json record() const override;
  std::string summary() override;

 private:
  int64_t finished_steps() const;
  int64_t total_steps() const;
  double samples_per_second() const;
  double share_of_peak(double samples_per_second) const;
  Metrics metrics() const;  ///< metrics of the last finished step
  std::string unsaved() const;
  /// The bytes of tokens that the run has sent to experts and back, next to the planned ones; null if not counted.
  nlohmann::ordered_json token_exchange() const;
  /// Returns how many steps each rank has audited, and the largest overhead; null if none was.
  nlohmann::ordered_json audits() const;
  void watch_gpu();
  /// Returns a line that names a rank that persistently takes much longer for its work than another; else empty.
  std::string watch_work();

  const PlannedJob& job_;
  const RankClasses& classes_;
  Checkpoints& checkpoints_;
  const WorkloadOptions& options_;
  const std::vector<CudaDevice>& gpus_;
  const NetworkOnHosts* const on_hosts_;
  const double flops_;                 ///< operations per step of all ranks
  std::vector<std::string> at_start_;  ///< lines that are not shown yet
  std::optional<GpuWatch> gpu_watch_;  ///< samples the GPU for a profile
  StoppedRanks stopped_;
  // The current attempt.
  std::shared_ptr<const SharedMemory> board_;
  std::optional<RunDirectory> directory_;
  RankStates states_;
  bool start_up_reported_ = false;
  std::vector<double> uneven_work_;
  int straggler_ = -1;  ///< the rank with the most work in the last window, if it was a straggler
  int named_ = -1;      ///< the straggler that a line has named
};

}  // namespace trainctl
