// Chooses the layers whose products multiply factors of 8 bits (precision: fp8).
#include "engine/plan/narrow_layers.h"

#include <algorithm>

#include "engine/base/name_pattern.h"
#include "engine/base/text.h"
#include "engine/ops/matmul/fp8_factors.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

constexpr int64_t kUnit = 16;  ///< cuBLASLt requires that all sizes of 8-bit factors are multiples of 16

/// Returns the layer whose output is the input of the loss; -1 if there is no loss.
LayerId head_of(const Graph& graph, const JobSpec& spec) {
  const auto prediction = spec.loss ? graph.find_tensor(spec.loss->input) : std::nullopt;
  const NodeId producer = prediction ? graph.tensors[static_cast<size_t>(*prediction)].producer : -1;
  return producer < 0 ? -1 : graph.nodes[static_cast<size_t>(producer)].layer;
}

bool is_chosen(const std::string& layer, bool is_head, const Fp8Spec& fp8) {
  return std::any_of(fp8.layers.begin(), fp8.layers.end(), [&](const std::string& pattern) {
    return pattern == layer || (!is_head && name_matches(pattern, layer));
  });
}

/// True if the node multiplies by a weight that is large enough for products of 8-bit factors to pay off.
bool fits(const Graph& graph, const Node& node, const Fp8Spec& fp8) {
  const auto factors = fp8_factors(get_op(node.op).kernel, node.attrs);
  if (!factors || node.phase != Phase::forward) return false;
  const Tensor& weight = graph.tensors[static_cast<size_t>(node.inputs[factors->b.input])];
  return weight.kind == TensorKind::parameter && weight.shape.size() == 2 && weight.shape[0] % kUnit == 0 &&
         weight.shape[1] % kUnit == 0 && num_elements(weight.shape) >= fp8.min_weight;
}

}  // namespace

std::vector<bool> narrow_layers(const Graph& graph, const JobSpec& spec) {
  std::vector<bool> narrow(graph.layers.size(), false);
  if (!spec.fp8) return narrow;
  const LayerId head = head_of(graph, spec);
  for (const Node& node : graph.nodes) {
    const auto layer = static_cast<size_t>(node.layer);
    if (!narrow[layer] && fits(graph, node, *spec.fp8))
      narrow[layer] = is_chosen(graph.layers[layer].name, node.layer == head, *spec.fp8);
  }
  return narrow;
}

}  // namespace trainctl
