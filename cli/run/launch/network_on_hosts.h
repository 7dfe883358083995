// launch.hosts: the launcher's side of a network whose ranks run on other hosts. It passes their statuses from host to
// host, gathers their saves, and recovers their state when a host is lost.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/launch/workload.h"
#include "cli/run/saves/checkpoints.h"
#include "cli/run/saves/gathered_saves.h"
#include "cli/run/saves/rescued_state.h"
#include "engine/compile/rank_classes.h"
#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/board_changes.h"
#include "engine/runtime/comm/shared_memory.h"
#include "launcher/hosts/launcher_share.h"

namespace trainctl {

/// The memory that the ranks of one host share, as SharedMemory::create makes it.
struct HostMemory {
  std::vector<int64_t> arena_bytes;  ///< by rank, in host memory
  std::vector<Route> routes;         ///< routes of messages through shared memory
};

class NetworkOnHosts : public hosts::LauncherShare, public hosts::LauncherSaves {
 public:
  /// All arguments must outlive it. Throws EnvError if this host lacks memory for the final weights.
  NetworkOnHosts(const PlannedJob& job, const RankClasses& classes, Checkpoints& checkpoints,
                 const WorkloadOptions& options);

  /// Prepares an attempt; the checkpoints must be prepared before. `board`: where the launcher reads the progress of
  /// ranks. `memory`: on each host.
  void prepare(int attempt, const RunDirectory& directory, const std::shared_ptr<SharedMemory>& board,
               const HostMemory& memory);
  /// The command of a rank. The words in braces are filled in on the host.
  ProcessCommand command(const RankPlace& place) const;

  /// launch.elastic: whether state is recovered from hosts that respond; initially not.
  void allow_rescue(bool is_allowed) { may_rescue_ = is_allowed; }
  /// Called after the ranks have ended: writes recovered state as the newest checkpoint, if it is newer. Returns a line
  /// for the user, or "". Throws EnvError.
  std::string write_rescued();
  /// For outcome.json: the bytes that the current attempt has moved within and between hosts, and those that its plan
  /// predicts. An empty object if a rank did not finish.
  nlohmann::ordered_json traffic() const;

  nlohmann::json for_agents() const override;
  std::map<std::string, std::string> given() const override;
  std::map<std::string, int64_t> kept_bytes() const override;
  bool apply(std::string_view changes, const std::vector<int>& ranks) override;
  std::string changes_for(int host) override { return changes_[static_cast<size_t>(host)].take(); }
  void stop_after(uint64_t step) override;

  bool take(const hosts::SaveMessage& message, const std::vector<int>& ranks) override;
  std::vector<hosts::SaveMessage> messages() override;
  bool wants_hold() const override { return saves_ && saves_->wants_hold(); }
  void gates_held(uint64_t highest) override;
  std::optional<int64_t> rescue(const std::vector<std::vector<int>>& hosts) override;

 private:
  void require_room_for_final_weights() const;
  bool keeps_snapshots() const { return job_.spec.launch.elastic && job_.spec.train.saves_state(); }
  SaveAfter save_after() const;
  std::string host_sizes() const;

  const PlannedJob& job_;
  const RankClasses& classes_;
  Checkpoints& checkpoints_;
  const WorkloadOptions& options_;
  const Cluster cluster_;
  const SaveAfter save_after_;
  bool may_rescue_ = false;
  // The current attempt.
  int attempt_ = 0;
  std::optional<RunDirectory> directory_;
  std::shared_ptr<SharedMemory> board_;
  HostMemory memory_;
  std::vector<BoardChanges> changes_;    ///< for each host: the ranks of other hosts
  std::optional<GatheredSaves> saves_;   ///< unset: the job saves nothing
  std::optional<RescuedState> rescued_;  ///< set with launch.elastic
};

}  // namespace trainctl
