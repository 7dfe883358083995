// The load of the experts of one layer, as f32 sums over tokens: what `expert_load` computes for a micro-batch, and
// what the state <layer>.expert_load holds for the last step.
//   [0, n)   (token, expert) pairs that the router chose, before any are dropped
//   [n, 2n)  probabilities p: softmax of the logits, or sigmoids divided by their sum
//   2n       entropies of p, in nats
//   2n + 1   squares of the logarithm of the sum of e^logit (z-loss)
//   2n + 2   pairs that were dropped
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/graph/graph.h"
#include "engine/ops/host_device.h"

namespace trainctl {

/// Names of the states of a layer, behind its own.
inline constexpr std::string_view kExpertLoadState = "expert_load", kBalanceBiasState = "balance_bias";
/// Returns whether a state of this name is the load of a layer. Files of weights do not have it; it starts at 0.
inline bool is_expert_load(std::string_view name) {
  if (!name.ends_with(kExpertLoadState)) return false;
  name.remove_suffix(kExpertLoadState.size());
  return name.ends_with('.');
}

struct LoadPlaces {
  int64_t experts = 0;

  TRAINCTL_HOST_DEVICE int64_t probability(int64_t expert) const { return experts + expert; }
  TRAINCTL_HOST_DEVICE int64_t entropy() const { return 2 * experts; }
  TRAINCTL_HOST_DEVICE int64_t square() const { return 2 * experts + 1; }
  TRAINCTL_HOST_DEVICE int64_t dropped() const { return 2 * experts + 2; }
  TRAINCTL_HOST_DEVICE int64_t size() const { return 2 * experts + 3; }
};
inline LoadPlaces load_places(int64_t size) { return {(size - 3) / 2}; }

/// The numbers that are reported for the load of a step.
struct ExpertReport {
  double max_load = 0, min_load = 0;  ///< largest and smallest load of an expert, relative to the mean
  double entropy = 0;                 ///< mean of the tokens' entropies of p, in nats
  double balance = 0;                 ///< n * sum of f_e P_e / top_k: 1 if each expert has the same load
  double dropped = 0;                 ///< share of the pairs
};
/// `load`: the state; `top_k`: experts per token. All 0 if no token was counted.
ExpertReport expert_report(const std::vector<float>& load, int64_t top_k);

/// The factor of a layer that numbers its experts; -1: the layer has none.
int expert_factor(const Graph& graph, LayerId layer);
/// Experts per token of the layer; 0: it has no experts.
int64_t experts_per_token(const Graph& graph, LayerId layer);

/// The node that computes the experts of a layer; -1: it has none.
struct ExpertCall {
  NodeId node = -1;  ///< reads x, weights and ids, and the two weights of all experts
  double capacity = 1;
  int64_t bytes_of_row = 0;  ///< kept for the backward pass of each (token, expert) pair
};
ExpertCall expert_call(const Graph& graph, LayerId layer);

/// Describes how the gradient of the logits is changed for balance (op `balance`).
struct BalanceTerm {
  int64_t experts = 0, top_k = 0;
  int64_t rows = 0;     ///< tokens of the micro-batch
  int64_t of_load = 0;  ///< tokens that a row of the load counts: all, or those of one sequence
  bool by_sequence = false, sigmoid = false;
  float coefficient = 0, z_loss = 0;  ///< coefficients for one micro-batch

  static BalanceTerm of(const Attrs& attrs, int64_t experts) {
    BalanceTerm t;
    t.experts = experts;
    t.top_k = attrs.integer("top_k");
    t.rows = attrs.integer("rows");
    t.of_load = attrs.integer("of_load");
    t.by_sequence = attrs.flag("by_sequence");
    t.sigmoid = attrs.text("score", "softmax") == "sigmoid";
    t.coefficient = static_cast<float>(attrs.number("coefficient", 0.0));
    t.z_loss = static_cast<float>(attrs.number("z_loss", 0.0));
    return t;
  }

  /// f_e of one pair. Hugging Face divides by tokens, DeepSeek by chosen pairs.
  TRAINCTL_HOST_DEVICE float per_pair() const {
    const auto tokens = static_cast<float>(by_sequence ? of_load * top_k : of_load);
    return static_cast<float>(experts) / tokens;
  }
};

}  // namespace trainctl
