// Reports nodes of which one rank would have to store too large a shard, and says how to shrink it.
#include "engine/plan/axes/shard_limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/layer_errors.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

struct Part {
  TensorId tensor = -1;
  Shape shape;
};

Shape part_shape(const Graph& graph, const Plan& plan, TensorId tensor, const Layout& layout) {
  const Shape& whole = graph.tensors[tensor].shape;
  return plan.hybrid() ? whole : layout.local_shape(plan.mesh, whole);  // hybrid_parallel: shapes are a rank's already
}

bool takes_less(const Part& a, const Part& b) { return num_elements(a.shape) < num_elements(b.shape); }

/// Returns the largest local shard among all operands of the node.
Part largest_part(const Graph& graph, const Plan& plan, const Node& node) {
  Part largest;
  const auto look_at = [&](TensorId tensor, auto layout_of, size_t i) {
    if (num_elements(graph.tensors[tensor].shape) <= kMaxShardElements) return;
    Part part{tensor, part_shape(graph, plan, tensor, layout_of(graph, plan, node, static_cast<int>(i)))};
    if (largest.tensor < 0 || takes_less(largest, part)) largest = std::move(part);
  };
  for (size_t i = 0; i < node.inputs.size(); ++i) look_at(node.inputs[i], input_layout, i);
  for (size_t o = 0; o < node.outputs.size(); ++o) look_at(node.outputs[o], output_layout, o);
  return largest;
}

std::string ranks_text(const Plan& plan, int stage) {
  const int size = plan.mesh.size(), first = stage * size;
  if (size == 1) return fmt::format("rank {}", first);
  return fmt::format("each of the ranks {} to {}", first, first + size - 1);
}

/// Returns the name that the user wrote, not that of an inner node ("fc.matmul").
std::string name_of(const Graph& graph, const Tensor& tensor) {
  return tensor.producer < 0 ? tensor.name : graph.layers[graph.nodes[tensor.producer].layer].name;
}

std::string message(const Graph& graph, const Plan& plan, LayerId layer, const Part& part) {
  const Tensor& tensor = graph.tensors[part.tensor];
  const std::string of = part.shape == tensor.shape ? "all of it" : to_string(part.shape) + " of it";
  return fmt::format("{} is {}; {} would store {}, {}, but a rank can store at most {} of one tensor",
                     name_of(graph, tensor), to_string(tensor.shape),
                     ranks_text(plan, plan.layers[layer].virtual_stage % plan.num_stages), of,
                     format_bytes(num_elements(part.shape) * byte_size(tensor.dtype)),
                     format_bytes(kMaxShardElements * byte_size(tensor.dtype)));
}

}  // namespace

std::vector<Diagnostic> shards_too_large(const Graph& graph, const JobSpec& spec, const Plan& plan) {
  std::vector<Part> worst(graph.layers.size());
  for (const Node& node : graph.nodes) {
    Part part = largest_part(graph, plan, node);
    if (part.tensor < 0 || num_elements(part.shape) <= kMaxShardElements) continue;
    Part& known = worst[node.layer];
    if (known.tensor < 0 || takes_less(known, part)) known = std::move(part);
  }
  LayerErrors errors;
  for (LayerId l = 0; l < static_cast<LayerId>(worst.size()); ++l) {
    if (worst[l].tensor < 0) continue;
    errors.add(
        {graph.layers[l].pos, "network", message(graph, plan, l, worst[l]), how_to_shrink_shards(spec.parallel.mode)},
        graph.layers[l].name);
  }
  return errors.take();
}

void require_few_executions(const Graph& graph, const JobSpec& spec) {
  const auto nodes = static_cast<int64_t>(graph.nodes.size());
  const int64_t executions = capped_product(nodes, spec.parallel.micro_batches);
  if (executions <= kMaxExecutions || spec.parallel.micro_batches == 1) return;
  throw SpecError(
      spec.position("parallel.micro_batches"), "parallel.micro_batches",
      fmt::format("{} micro-batches of {} operations each add up to {} operations per step; the limit is {}",
                  spec.parallel.micro_batches, with_commas(nodes), with_commas(executions),
                  with_commas(kMaxExecutions)),
      fmt::format("use at most {} micro-batches for this network", std::max<int64_t>(1, kMaxExecutions / nodes)));
}

std::string how_to_shrink_shards(ParallelMode mode) {
  const std::string rows = "reduce dataset.batch, or increase parallel.micro_batches";
  switch (mode) {
    case ParallelMode::stand_alone:
      return rows + ", or use parallel.mode: semi_auto_parallel on several ranks";
    case ParallelMode::semi_auto_parallel:
      return rows + ", or increase launch.ranks, or add cuts to parallel.strategies";
    default:
      return rows + ", or increase launch.ranks";
  }
}

}  // namespace trainctl
