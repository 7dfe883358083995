// Chooses the layers that the backward pass computes again (parallel.recompute).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// The repeated block that a layer belongs to: its name up to the first component that is a number, "h.3" of
/// "h.3.attn.q"; empty if there is none.
std::string_view block_of(std::string_view layer);

/// Returns for each layer whether a layer outside of its block reads its output. Recompute keeps such outputs.
std::vector<bool> outputs_of_blocks(const Graph& graph);

/// Layers that rules of parallel.recompute name.
struct RecomputedLayers {
  std::vector<bool> of_layer;
  /// Layers that the rules name but whose output leaves a block. It is kept: a backward pass that started without the
  /// outputs of blocks would compute all blocks again, and hold what it computes.
  std::vector<LayerId> kept;
};
RecomputedLayers recomputed_layers(const Graph& graph, const std::vector<LayerFacts>& facts,
                                   const std::vector<RecomputeRule>& rules);

/// "" if none is kept.
std::string note_on_kept_outputs(const Graph& graph, const RecomputedLayers& layers);

}  // namespace trainctl
