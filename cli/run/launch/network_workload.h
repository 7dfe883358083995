// A network, trained by one `trainctl worker` per rank: plan, programs, and the ranks' shared memory.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/launch/device_choice.h"
#include "cli/run/launch/network_on_hosts.h"
#include "cli/run/launch/network_reports.h"
#include "cli/run/launch/planned_texts.h"
#include "cli/run/launch/shared_cache.h"
#include "cli/run/launch/workload.h"
#include "cli/run/saves/checkpoints.h"
#include "cli/run/worker/rendezvous.h"
#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "launcher/store.h"

namespace trainctl {

class NetworkWorkload : public Workload, public RankProgram {
 public:
  /// Throws SpecError, and EnvError if the host lacks what the plan needs.
  /// `asked` is launch.device as written; in `job` it is resolved. options.start_up has run since the command began.
  NetworkWorkload(PlannedJob job, Device asked, const CudaDevices& found, const WorkloadOptions& options,
                  boost::asio::io_context& loop);

  const JobSpec& spec() const override { return job_.spec; }
  nlohmann::ordered_json plan() const override;
  std::string device() const override { return device_; }
  void prepare(int attempt, const RunDirectory& directory) override;
  void configure(Launch& launch) override;
  RankProgram& program() override { return *this; }
  WorkloadReports& reports() override { return *reports_; }
  NetworkOnHosts* on_hosts() override { return on_hosts_ ? &*on_hosts_ : nullptr; }

  ProcessCommand command(const RankPlace& place, int attempt) override;
  void started(int rank, int pid) override;
  void ended(int rank, bool failed) override;
  void rejoins(int rank) override;
  std::string doing(int rank) override;
  std::optional<RankProgress> progress(int rank) override;
  bool save_now() override;
  void stop_after_step() override;
  std::optional<int64_t> stopped_at() override { return reports_->stopped_at(); }

 private:
  void choose_devices(Device asked, const CudaDevices& found);
  void run_beside(const RankClasses& others);
  void make_room_for_texts();
  void add_routes(const std::vector<Route>& more);
  void require_host_memory() const;
  bool has_hosts() const { return job_.spec.launch.has_hosts(); }

  const PlannedJob job_;
  const WorkloadOptions options_;
  StartUpClock start_up_;
  RankClasses classes_;
  const std::optional<RankClasses> beside_;           ///< programs that run in addition to those of classes_
  const std::optional<RankClasses> synchronization_;  ///< the same: programs of parallel.local_steps
  const std::optional<PlannedTexts> texts_;           ///< texts of validation.generate
  Checkpoints checkpoints_;
  HostMemory memory_;
  std::vector<CudaDevice> gpus_;           ///< by rank; empty: the ranks run on CPUs
  std::vector<std::string> visible_gpus_;  ///< by rank, as in CUDA_VISIBLE_DEVICES
  std::string device_;
  boost::asio::io_context& loop_;
  std::optional<NetworkOnHosts> on_hosts_;  ///< set with launch.hosts
  std::optional<NetworkReports> reports_;
  // The current attempt.
  int run_ = 0;                          ///< number of the run
  std::shared_ptr<SharedMemory> board_;  ///< on one host it also contains the arenas
  SharedCache cache_;
  SharedCache passed_weights_;  ///< for SharedWeights
  std::unique_ptr<StoreServer> store_;
  std::unique_ptr<StoreAccess> store_access_;
};

}  // namespace trainctl
