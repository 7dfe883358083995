// The cuts of all layers of a network on the ranks of one stage: the least sum of kernels and redistributions (Traffic)
// over a stated space, exactly. Layers at the same place of repeated blocks have the same cuts.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/traffic/cost_model.h"
#include "engine/plan/traffic/traffic.h"
#include "engine/search/cuts/cut_candidates.h"
#include "engine/search/cuts/cut_network.h"
#include "engine/search/cuts/unit_memory.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Cuts of the layers of a pattern that differ from the chosen ones.
struct CutAlternative {
  std::string pattern;
  std::vector<Ints> cuts;  ///< per dim of each input
  double seconds = 0;      ///< seconds per micro-batch by which the whole network is slower with it
  double bytes = 0;        ///< extra bytes that a rank sends, per micro-batch; may be negative
  FactorAxes axes = {};
};

/// "saves 12.3 us and 4.0 MiB sent a micro-batch against [[8, 1], [1, 1]]".
std::string reason_against(const CutAlternative& other);

struct FoundCuts {
  AxisSplit split;
  std::vector<FactorAxes> of_layer;
  std::vector<double>
      layer_seconds;   ///< by layer: per micro-batch, forward and backward, with redistributions of its outputs
  double seconds = 0;  ///< per micro-batch of the whole network: the time that the aim minimizes
  bool exact = true;
  std::vector<FactorAxes> of_unit;
};

/// The aim of a search for cuts.
enum class CutAim : uint8_t {
  least_time,
  /// The least time in redistributions of activations; among cuts with equal time in these, the least total time.
  least_redistribution,
  /// The least time among cuts whose last run of axes (AxisSplit) does not cut the batch of layers with products,
  /// unless it can cut nothing else.
  tensor_parallel,
};

/// The search space of cuts. It caches redistributions for all searches in it.
struct CutSpace {
  CutSpace(const CutNetwork& network, const Mesh& mesh, Effort effort, const CostModel& cost, int micro_batches,
           std::vector<std::optional<LayerStrategy>> strategies);

  const CutNetwork& network;
  const Mesh& mesh;
  const Effort effort;
  /// Strategies of the graph's layers; they are constraints.
  const std::vector<std::optional<LayerStrategy>> strategies;
  Traffic traffic;
};

/// Finds the best cuts. `seconds_per_byte`: the price of a byte of weights, gradients, optimizer state and kept
/// activations. `bytes`: the bytes for each element of a parameter.
FoundCuts find_cuts(CutSpace& space, const AxisSplit& split, CutAim aim = CutAim::least_time,
                    double seconds_per_byte = 0, const BytesPerWeight& bytes = {});

/// Finds up to `most` different cuts, the best first, where each axis may cut another factor. The loss, and nodes that
/// finish layers (units.h), are cut in the best way for each of them.
std::vector<FoundCuts> least_cuts(CutSpace& space, double seconds_per_byte, const BytesPerWeight& bytes, size_t most);

/// Every layer is cut along the batch. No layer may have a strategy.
FoundCuts data_parallel_cuts(CutSpace& space);
/// No layer is cut, so every rank computes everything and nothing is sent. No layer may have a strategy.
FoundCuts whole_cuts(CutSpace& space);

/// Returns for each pattern without a strategy the cheapest other cuts, if there are any; the cuts of all other
/// patterns do not change.
std::vector<CutAlternative> next_best_cuts(CutSpace& space, const FoundCuts& found);
/// Returns all other cuts of each such pattern, the cheapest first. CutAlternative::bytes is not set.
std::vector<CutAlternative> other_cuts(CutSpace& space, const FoundCuts& found);
/// Returns `found` with the cuts of `other` for its pattern.
FoundCuts with_other(const CutNetwork& network, FoundCuts found, const CutAlternative& other);

}  // namespace trainctl
