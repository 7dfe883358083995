// Estimates the time and the memory of a step from the loads of its layers (loads.h). Choices that share cuts and
// micro-batches differ only in stages, schedule, recomputation and optimizer_shard, so thousands of them are estimated
// from the same loads: first layers are divided into stages, then each stage adds up its layers.
#pragma once

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/search/choices/plan_choice.h"
#include "engine/search/cuts/loads.h"

namespace trainctl {

/// Returns the time, in units of a micro-batch, for which a stage has no work at the start and end of the pipeline.
double waits(Schedule schedule, int stages, int chunks);

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
