// The limits of what one rank can store. Whole tensors may be far larger than any machine, because they are sharded.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// One tensor on one rank: 4 TiB of f32. If every local shard is within this limit, it can be placed in an arena
/// without a byte count overflowing an int64_t.
inline constexpr int64_t kMaxShardElements = int64_t{1} << 40;
/// All buffers of a rank together: 64 TiB.
inline constexpr int64_t kMaxArenaBytes = int64_t{1} << 46;

/// One error per layer with an operand whose shard would have more than kMaxShardElements, at the layer's
/// position: the tensor, its size, the ranks, and what would make it smaller. Needs only the stages and axes of the
/// layers.
std::vector<Diagnostic> shards_too_large(const Graph& graph, const JobSpec& spec, const Plan& plan);

/// Nodes that a step executes, over all stages and micro-batches: their instructions are all compiled and proved.
inline constexpr int64_t kMaxExecutions = 1'000'000;
/// Throws SpecError at parallel.micro_batches if a step has more.
void require_few_executions(const Graph& graph, const JobSpec& spec);

/// Lists settings that make local shards smaller, for error messages: "more parallel.micro_batches, …".
std::string how_to_shrink_shards(ParallelMode mode);

}  // namespace trainctl
