// The cuts of a layer that a search considers.
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

/// A division of the axes of a mesh into runs, major first: each run as a whole cuts one factor of a layer, or none.
/// With low and normal effort there are divisions into one run, and into two runs, where the first cuts the batch or
/// nothing. With high effort there are up to three runs, and each may cut any factor.
using AxisSplit = std::vector<Axes>;
std::vector<AxisSplit> axis_splits(const Mesh& mesh, Effort effort);

/// Each axis is a run of its own.
AxisSplit split_per_axis(const Mesh& mesh);

using CutCandidates = std::vector<FactorAxes>;

/// Adds the candidate unless `all` contains it.
void add_once(CutCandidates& all, FactorAxes axes);

/// Returns all assignments of each run to one factor, or to none.
CutCandidates cut_candidates(const Mesh& mesh, const Layer& layer, const LayerFacts& facts, const AxisSplit& split,
                             Effort effort);

/// Returns the candidates that cut each factor in these ways; if there are none, all assignments that do.
CutCandidates with_strategy(const Mesh& mesh, CutCandidates all, const std::vector<int64_t>& ways);

/// Returns the candidates in which the run cuts a factor other than the batch; if there are none, all candidates.
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
