// What a stage does and holds if its layers are cut in a way: the search's own sum, in time and memory.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/plan/cost_model.h"
#include "engine/search/cut_search.h"
#include "engine/search/plan_choice.h"

namespace trainctl {

/// Of one layer of the whole network.
struct LayerLoad {
  std::string name;
  double seconds = 0;          ///< a micro-batch
  double forward_seconds = 0;  ///< the part that recompute would repeat
  double kept_bytes = 0;       ///< a micro-batch
  double made_bytes = 0;       ///< its output of a micro-batch
  double elements = 0;         ///< of its parameters, on a rank
  /// What optimizer_shard cuts its parameters by.
  struct Shards {
    double ways = 1;            ///< ranks that hold the same
    double gather_seconds = 0;  ///< of its weights, once
  };
  Shards of_all, of_host;  ///< the latter within_host
};

/// How much of the pipeline's start and end a stage waits for, in its micro-batches.
double waits(Schedule schedule, int stages, int chunks);

/// The layers of the whole network, the loss last. `within_host`: axes_within_hosts.
std::vector<LayerLoad> loads_of(const CutNetwork& network, const JobSpec& whole, const Repeats& repeats,
                                const Mesh& mesh, const FoundCuts& cuts, const CostModel& cost,
                                const Axes& within_host);

/// Bytes of one element of a parameter and what belongs to it.
struct WeightBytes {
  double weight = 4, master = 0, gradient = 4, optimizer = 0;
  double least_sharded = 0;  ///< f32 bytes of parameters below which optimizer_shard leaves them whole
};
WeightBytes weight_bytes(const JobSpec& job);

struct Expected {
  double seconds = 0;
  double memory = 0;
};

/// The sums of choices that differ in all but cuts and micro-batches. Refers to what it is given.
class StepSum {
 public:
  StepSum(const std::vector<LayerLoad>& loads, const WeightBytes& bytes, const Machine& machine)
      : loads_(loads), bytes_(bytes), machine_(machine), recomputed_(loads.size(), false) {}

  /// By layer, of the choices that follow.
  void recompute(const std::vector<bool>& layers);
  Expected of(const PlanChoice& choice);

 private:
  /// Seconds of each layer in a micro-batch, and the part of the network that it is in.
  struct Placed {
    std::vector<double> seconds;
    std::vector<int> part_of;
  };
  static const LayerLoad::Shards& shards_of(const LayerLoad& load, const PlanChoice& choice);
  int level_of(const LayerLoad& load, const PlanChoice& choice) const;
  const Placed& placed(const PlanChoice& choice);
  /// What each layer adds to a stage, by what optimizer_shard cuts of it.
  struct Shares {
    std::vector<double> update_bytes, memory, summed, gathered;
  };
  const Shares& shares(const PlanChoice& choice);
  /// What a stage does and holds, of one micro-batch.
  struct Stage {
    double seconds = 0, update_bytes = 0, memory = 0, kept = 0, largest = 0;
    double summed = 0, gathered = 0;  ///< beside its shards: gradients and weights of what is sharded
  };
  const std::vector<Stage>& stages(const PlanChoice& choice);

  const std::vector<LayerLoad>& loads_;
  const WeightBytes& bytes_;
  const Machine& machine_;
  std::vector<bool> recomputed_;  ///< by layer
  /// By parts, and how weights are gathered: 0: not, 1: from all ranks, 2: within a host.
  std::map<std::pair<int, int>, Placed> placed_;
  /// By the level of optimizer_shard and whether it is within a host.
  std::map<std::pair<int, bool>, Shares> shares_;
  /// By stages, chunks, and the level of optimizer_shard and whether it is within a host.
  std::map<std::tuple<int, int, int, bool>, std::vector<Stage>> stages_;
};

}  // namespace trainctl
