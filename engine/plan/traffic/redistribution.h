// The cheapest path from one layout of a tensor to another on the same mesh: a shortest path over layouts under the
// cost model. The compiler emits exactly these steps.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/dtype.h"
#include "engine/plan/layout.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {

enum class StepKind : uint8_t {
  slice,           ///< cut `dim` further by `axes`: each rank keeps its block; nothing on the wire
  all_gather,      ///< undo the last cuts of `dim`, by `axes`
  reduce_scatter,  ///< sum over `axes` (partial before), each rank keeps its block of `dim`
  all_reduce,      ///< sum over `axes` (partial before)
  all_to_all,      ///< move the last cuts `axes` of `dim` to the end of dim `to_dim`
};
std::string_view to_string(StepKind kind);

struct RedistributionStep {
  StepKind kind;
  int dim = -1;
  int to_dim = -1;  ///< all_to_all
  Axes axes;        ///< axes of the group, in the order in which blocks are numbered
  Layout before, after;
};

/// The steps from `from` to `to` (none if equal). `to` is partial only over axes that `from` is partial over. Every
/// layout can reach every other; axes in another order go through all_gather and slice.
std::vector<RedistributionStep> plan_redistribution(const Mesh& mesh, const Shape& shape, DType dtype,
                                                    const Layout& from, const Layout& to, const CostModel& cost);

/// The seconds that those steps take; 0 for none.
double redistribution_seconds(const Mesh& mesh, const Shape& shape, DType dtype,
                              const std::vector<RedistributionStep>& steps, const CostModel& cost);

/// The bytes that a rank sends in them.
double redistribution_bytes(const Mesh& mesh, const Shape& shape, DType dtype,
                            const std::vector<RedistributionStep>& steps);

/// "all_gather dim 1 over axes {0,1}".
std::string to_string(const RedistributionStep& step);

}  // namespace trainctl
