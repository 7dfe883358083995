// Estimated work and memory of a stage whose layers are cut in a given way.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/plan/traffic/cost_model.h"
#include "engine/search/choices/plan_choice.h"
#include "engine/search/cuts/cut_search.h"

namespace trainctl {

/// Load of one layer of the whole network.
struct LayerLoad {
  std::string name;
  double seconds = 0;          ///< seconds per micro-batch
  double forward_seconds = 0;  ///< the part that recompute would repeat
  double kept_bytes = 0;       ///< kept bytes per micro-batch
  bool is_offloaded = false;   ///< its kept tensors wait for the backward pass in the memory of the host
  double made_bytes = 0;       ///< bytes of its output, per micro-batch
  double elements = 0;         ///< elements of its trained parameters on a rank
  double frozen_elements = 0;  ///< elements of its frozen parameters, without packed ones
  double packed_bytes = 0;     ///< bytes of its packed parameters
  /// Ranks over which optimizer_shard cuts its trained parameters.
  struct Shards {
    double ways = 1;            ///< number of ranks that hold the same parameters
    double gather_seconds = 0;  ///< seconds to gather its weights once
  };
  Shards of_all, of_host;  ///< over all such ranks; over those of one host (optimizer_shard.within_host)
};

/// Returns the time, in units of a micro-batch, for which a stage has no work at the start and end of the pipeline.
double waits(Schedule schedule, int stages, int chunks);

/// The layers of the whole network with their adapters, the loss last. `within_host`: axes_within_hosts.
std::vector<LayerLoad> loads_of(const CutNetwork& network, const JobSpec& whole, const Repeats& repeats,
                                const Mesh& mesh, const FoundCuts& cuts, const CostModel& cost,
                                const Axes& within_host);

/// Bytes per element of a trained parameter: the weight that kernels read, the f32 weight that is updated (master) if
/// it is separate, the gradient, and the optimizer's states on the device.
struct WeightBytes {
  double weight = 4, master = 0, gradient = 4, optimizer = 0;
  double on_host = 0;        ///< bytes of the optimizer's state in the memory of the host
  double least_sharded = 0;  ///< f32 bytes of parameters below which optimizer_shard leaves them whole
};
WeightBytes weight_bytes(const JobSpec& job, const Machine& machine);

struct Expected {
  double seconds = 0;
  double memory = 0;
};

/// The estimates of choices with the same cuts and micro-batches. Refers to its arguments.
class StepSum {
 public:
  StepSum(const std::vector<LayerLoad>& loads, const WeightBytes& bytes, const Machine& machine)
      : loads_(loads), bytes_(bytes), machine_(machine), recomputed_(loads.size(), false) {}

  /// Sets for each layer whether it is recomputed, for the following calls of of().
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
  /// Amounts that each layer adds to a stage, given what optimizer_shard cuts of it.
  struct Shares {
    std::vector<double> update_bytes, host_bytes, memory, gradients, summed, gathered;
  };
  const Shares& shares(const PlanChoice& choice);
  /// Work and memory of a stage for one micro-batch.
  struct Stage {
    double seconds = 0, update_bytes = 0, host_bytes = 0, memory = 0, gradients = 0, kept = 0, largest = 0;
    double to_host = 0;               ///< activations that are copied to the host, and back, for each micro-batch
    double summed = 0, gathered = 0;  ///< in addition to its shards: gradients and weights of sharded layers
  };
  const std::vector<Stage>& stages(const PlanChoice& choice);

  const std::vector<LayerLoad>& loads_;
  const WeightBytes& bytes_;
  const Machine& machine_;
  std::vector<bool> recomputed_;  ///< by layer
  /// Key: number of virtual stages, and how weights are gathered (0: not at all, 1: from all ranks, 2: within a host).
  std::map<std::pair<int, int>, Placed> placed_;
  /// Key: level of optimizer_shard, and whether it is within a host.
  std::map<std::pair<int, bool>, Shares> shares_;
  /// Key: stages, chunks, level of optimizer_shard, and whether it is within a host.
  std::map<std::tuple<int, int, int, bool>, std::vector<Stage>> stages_;
};

}  // namespace trainctl
