// Checks a rank's total memory against the largest possible arena.
#include "engine/compile/place/arena_limit.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/plan/axes/shard_limits.h"

namespace trainctl {
namespace {

/// The largest operand that is a tensor of the graph, and the layer that makes it (for a parameter: the first that
/// reads it).
struct Largest {
  const Operand* operand = nullptr;
  LayerId layer = -1;
};

LayerId layer_of(const Graph& graph, TensorId tensor) {
  if (const NodeId producer = graph.tensors[tensor].producer; producer >= 0) return graph.nodes[producer].layer;
  const std::vector<NodeId> readers = graph.consumers(tensor);
  return readers.empty() ? -1 : graph.nodes[readers.front()].layer;
}

/// The largest operand that a layer of the job explains, for the hint of the error.
Largest largest_tensor(const Compiler& c) {
  Largest largest;
  const auto look_at = [&](const Operand& operand) {
    if (largest.operand != nullptr && operand.bytes() <= largest.operand->bytes()) return;
    const auto tensor = c.graph.find_tensor(operand.tensor);
    const LayerId layer = tensor ? layer_of(c.graph, *tensor) : -1;
    if (layer >= 0) largest = {&operand, layer};
  };
  for (const VirtualInstruction& v : c.code) {
    for (const Operand& operand : v.code.inputs) look_at(operand);
    for (const Operand& operand : v.code.outputs) look_at(operand);
  }
  return largest;
}

}  // namespace

void require_arena_limit(const Compiler& c) {
  if (c.program.arena_bytes <= kMaxArenaBytes) return;
  const Largest largest = largest_tensor(c);
  SourcePos pos;
  std::string path = "network", of;
  if (largest.operand != nullptr) {
    const Layer& layer = c.graph.layers[largest.layer];
    pos = layer.pos;
    path = "layer " + layer.name;
    of = fmt::format("; the largest tensor is {} {}, {}", largest.operand->tensor, to_string(largest.operand->shape),
                     format_bytes(largest.operand->bytes()));
  }
  throw SpecError(
      pos, path,
      fmt::format("rank {} would need {} of memory ({}), but a rank can use at most {}{}", c.rank,
                  format_bytes(c.program.arena_bytes), to_string(c.program.memory), format_bytes(kMaxArenaBytes), of),
      how_to_shrink_shards(c.plan.mode));
}

}  // namespace trainctl
