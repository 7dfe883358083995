// A network, trained by one `trainctl worker` per rank: plan, programs, and the ranks' shared memory.
#pragma once

#include <memory>
#include <vector>

#include "cli/run/launch/device_choice.h"
#include "cli/run/launch/rank_states.h"
#include "cli/run/launch/shared_cache.h"
#include "cli/run/launch/stopped_ranks.h"
#include "cli/run/launch/workload.h"
#include "cli/run/saves/checkpoints.h"
#include "cli/run/saves/gathered_saves.h"
#include "cli/run/worker/rendezvous.h"
#include "engine/planning/planned_job.h"
#include "engine/planning/run_length.h"
#include "engine/runtime/comm/shared_memory.h"
#include "launcher/store.h"

namespace trainctl {

class NetworkWorkload : public Workload {
 public:
  /// Throws SpecError, and EnvError if the host lacks what the plan needs.
  /// `asked` is launch.device as written; in `job` it is resolved. options.start_up has run since the command began.
  NetworkWorkload(PlannedJob job, Device asked, const CudaDevices& found, const WorkloadOptions& options,
                  boost::asio::io_context& loop);

  const JobSpec& spec() const override { return job_.spec; }
  nlohmann::ordered_json plan() const override;
  std::string device() const override { return device_; }
  void prepare(int attempt, const RunDirectory& directory) override;
  ProcessCommand command(const RankPlace& place, const RunDirectory& directory) override;
  void connect(Launch& launch) override;
  bool is_up() const override;
  void describe(LiveStatus& status) override;
  std::vector<std::string> news(const RunDirectory& directory) override;
  std::vector<std::string> finish(const std::function<bool()>& is_hurried) override {
    return checkpoints_.finish(is_hurried);
  }
  std::string for_agents() const override;
  int64_t first_step() const override { return checkpoints_.first_step(); }
  GatheredSaves* saves() override { return saves_ ? &*saves_ : nullptr; }
  RescuedState* rescued() override { return rescued_ ? &*rescued_ : nullptr; }
  std::string write_rescued(const RunDirectory& directory) override;
  std::map<std::string, std::string> given() const override;
  const RankBoard* board() const override { return memory_.get(); }
  RunResult result() const override;
  nlohmann::ordered_json record(const RunDirectory& directory) const override;
  std::string report(const RunDirectory& directory) override;

 private:
  void run_beside(const RankClasses& others);
  void add_routes(const std::vector<Route>& more);
  void require_room_for_final_weights() const;
  void require_host_memory() const;
  void watch_gpu();
  int64_t finished_steps() const;
  int64_t total_steps() const;
  double samples_per_second() const;
  double share_of_peak(double samples_per_second) const;
  ProcessCommand agents_command(const RankPlace& place, const RunDirectory& directory) const;
  bool keeps_snapshots() const { return has_hosts() && job_.spec.launch.elastic && job_.spec.train.saves_state(); }
  SaveAfter save_after() const;
  std::string unsaved() const;
  bool has_hosts() const { return job_.spec.launch.has_hosts(); }
  Metrics metrics() const;  ///< metrics of the last finished step
  std::optional<int64_t> stopped_at() const;

  const PlannedJob job_;
  const WorkloadOptions options_;
  const Cluster cluster_;
  StartUpClock start_up_;
  bool start_up_reported_ = false;
  RankClasses classes_;
  const double flops_;                           ///< operations per step of all ranks
  const std::optional<RankClasses> validation_;  ///< programs that run in addition to those of classes_
  Checkpoints checkpoints_;
  SaveAfter saves_after_ = SaveAfter::written;
  std::vector<int64_t> arena_bytes_;  ///< in host memory
  std::vector<Route> routes_;         ///< routes of messages through shared memory
  std::vector<CudaDevice> gpus_;      ///< by rank; empty: the ranks run on CPUs
  std::string device_;
  std::string warning_;                ///< warning for the user at the start; empty: none, or already shown
  std::optional<GpuWatch> gpu_watch_;  ///< samples the GPU for a profile
  boost::asio::io_context& loop_;
  std::shared_ptr<SharedMemory> memory_;
  std::optional<GatheredSaves> saves_;   ///< set for several hosts
  std::optional<RescuedState> rescued_;  ///< set for several hosts with launch.elastic
  SharedCache cache_;
  std::unique_ptr<StoreServer> store_;
  std::unique_ptr<StoreAccess> store_access_;
  RankStates states_;
  StoppedRanks stopped_;
};

}  // namespace trainctl
