// What one rank may hold. Whole tensors may be far larger than any machine: they are cut.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// Of one tensor on one rank: 4 TiB of f32. A shape in which every rank's part is under it can be placed in an arena
/// without any count of bytes coming near the end of an int64_t.
inline constexpr int64_t kMaxPartElements = int64_t{1} << 40;
/// Of all that a rank keeps at offsets: 64 TiB.
inline constexpr int64_t kMaxArenaBytes = int64_t{1} << 46;

/// An error a layer with an operand of which a rank would hold more than kMaxPartElements, at the layer's position:
/// which tensor, how large on which ranks, and what would make it smaller. Needs stages and axes of the layers alone.
std::vector<Diagnostic> parts_too_large(const Graph& graph, const JobSpec& spec, const Plan& plan);

/// What makes a rank's part smaller, for errors: "more parallel.micro_batches, …".
std::string how_to_hold_less(const JobSpec& spec);

}  // namespace trainctl
