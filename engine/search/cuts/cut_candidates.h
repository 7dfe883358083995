// Which cuts of a layer a search weighs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/plan/axes/candidates.h"
#include "engine/plan/axes/strategies.h"
#include "engine/plan/traffic/traffic.h"
#include "engine/search/cuts/cut_network.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// The axes of a mesh in runs, major first: each run as a whole cuts one factor of a layer, or none. Low and normal
/// effort: one run, and two for each place between axes, of which the first cuts the batch or nothing. High: up to
/// three runs, and each may cut anything.
using AxisSplit = std::vector<Axes>;
std::vector<AxisSplit> axis_splits(const Mesh& mesh, Effort effort);

/// Each axis as a run.
AxisSplit split_per_axis(const Mesh& mesh);

using CutCandidates = std::vector<FactorAxes>;

/// Adds the candidates that are not there yet.
void add_once(CutCandidates& all, FactorAxes axes);

/// Each run to a factor, or to none.
CutCandidates cut_candidates(const Mesh& mesh, const Layer& layer, const LayerFacts& facts, const AxisSplit& split,
                             Effort effort);

/// Returns the candidates that cut each factor in these ways; if there are none, all assignments that do.
CutCandidates with_strategy(const Mesh& mesh, CutCandidates all, const std::vector<int64_t>& ways);

/// Returns the candidates in which the run cuts something else than the batch; all, if there are none.
CutCandidates cutting_no_batch(CutCandidates all, int batch_factor, const Axes& run);

/// Every cut that a strategy may give the layers of a pattern.
struct PatternCuts {
  std::string pattern;
  std::vector<std::vector<Ints>> cuts;  ///< each per dim of each input
};
/// Returns the cuts of layers without a strategy; layers that nothing can cut are left out.
std::vector<PatternCuts> every_cut(const CutNetwork& network, const Mesh& mesh,
                                   const std::vector<std::optional<LayerStrategy>>& strategies);

/// Cuts per dim of each input of the layer, as a strategy writes them.
std::vector<Ints> cuts_of(const Mesh& mesh, const Layer& layer, const FactorAxes& axes);

}  // namespace trainctl
