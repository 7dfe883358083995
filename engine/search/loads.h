// What a stage does and holds if its layers are cut in a way: the search's own sum, in time and memory.
#pragma once

#include <string>
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
  double replicas = 1;         ///< ranks that hold the same
  double gather_seconds = 0;   ///< of its weights, once
};

/// How much of the pipeline's start and end a stage waits for, in its micro-batches.
double waits(Schedule schedule, int stages, int chunks);

/// The layers of the whole network, the loss last.
std::vector<LayerLoad> loads_of(const CutNetwork& network, const JobSpec& whole, const Repeats& repeats, const Mesh& mesh,
                                const FoundCuts& cuts, const CostModel& cost);

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
/// `recomputed`: by layer.
Expected expected_step(const std::vector<LayerLoad>& loads, const std::vector<bool>& recomputed, const PlanChoice& choice,
                       const WeightBytes& bytes, const Machine& machine);

}  // namespace trainctl
