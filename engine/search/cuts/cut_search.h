// The cuts of all layers of a network on the ranks of one stage: the least sum of kernels and redistributions (Traffic)
// over a stated space, exactly. Layers at the same place of repeated blocks are cut alike.
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

/// Other cuts of the layers of a pattern.
struct CutAlternative {
  std::string pattern;
  std::vector<Ints> cuts;  ///< per dim of each input
  double seconds = 0;      ///< extra seconds of the whole network with it, per micro-batch
  double bytes = 0;        ///< extra bytes that a rank sends, per micro-batch; may be negative
  FactorAxes axes = {};
};

/// "saves 12.3 us and 4.0 MiB sent a micro-batch against [[8, 1], [1, 1]]".
std::string reason_against(const CutAlternative& other);

struct FoundCuts {
  AxisSplit split;
  std::vector<FactorAxes> of_layer;
  std::vector<double>
      layer_seconds;   ///< a micro-batch, forward and backward, with the moves of what it makes; of one such layer
  double seconds = 0;  ///< a micro-batch of the whole network; of what the aim counts
  bool exact = true;
  std::vector<FactorAxes> of_unit;
};

/// The aim of a search for cuts.
enum class CutAim : uint8_t {
  least_time,
  /// The least time in redistributions of activations; where that is equal, in all.
  least_redistribution,
  /// The least time of those in which the last run cuts no batch of a layer that has products, where it can cut
  /// anything else.
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

/// `seconds_per_byte`: what a byte of weights, gradients, optimizer state and kept activations counts
/// (`bytes` for each element of a parameter).
FoundCuts find_cuts(CutSpace& space, const AxisSplit& split, CutAim aim = CutAim::least_time,
                    double seconds_per_byte = 0, const BytesPerWeight& bytes = {});

/// The same over all cuts, each axis separately: cuts that differ as strategies, the least sum first, at most `most` of
/// them at most. What finishes layers, and the loss, is as is best with them.
std::vector<FoundCuts> least_cuts(CutSpace& space, double seconds_per_byte, const BytesPerWeight& bytes, size_t most);

/// Every layer cuts its batch; no layer may have a strategy.
FoundCuts data_parallel_cuts(CutSpace& space);
/// No layer cuts anything, so every rank does all of the work and there is nothing to send; the same holds.
FoundCuts whole_cuts(CutSpace& space);

/// For each pattern without a strategy the cheapest cuts other than the found ones while all others stay, if there are
/// any.
std::vector<CutAlternative> next_best_cuts(CutSpace& space, const FoundCuts& found);
/// All other cuts of each of them, those that cost least first; without their bytes.
std::vector<CutAlternative> other_cuts(CutSpace& space, const FoundCuts& found);
/// The cuts with one of these in its place.
FoundCuts with_other(const CutNetwork& network, FoundCuts found, const CutAlternative& other);

}  // namespace trainctl
