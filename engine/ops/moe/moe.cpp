// The layer of a mixture of experts, and the family of its ops: a router (route.cpp), its balance (balance.cpp) and the
// experts (experts.cpp).
#include <fmt/format.h>

#include <cmath>

#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/ops/moe/experts_size.h"
#include "engine/ops/moe/token_exchange.h"
#include "engine/ops/op_family.h"
#include "engine/ops/trace_batch.h"

namespace trainctl {

extern const OpDef route_op, route_grad_op, experts_op, experts_grad_op, expert_load_op, sequence_load_op,
    count_load_op, balance_bias_op, balance_op, balance_grad_op, drop_pairs_op;

namespace {

constexpr double kAuxLoss = 0.01;  ///< the default coefficient of balance: aux_loss, that of the Switch Transformer

std::vector<FieldFault> group_faults(const Attrs& attrs, int64_t experts, int64_t k) {
  const int64_t groups = attrs.integer("router.groups", 1), top_groups = attrs.integer("router.top_groups", groups);
  if (groups < 1 || experts % groups != 0)
    return {{"router.groups", fmt::format("{} experts are not divisible by {} groups", experts, groups), ""}};
  if (top_groups > groups)
    return {{"router.top_groups", fmt::format("top_groups: {} is more than the {} groups", top_groups, groups), ""}};
  if (top_groups * (experts / groups) < k)
    return {{"router.top_groups",
             fmt::format("the {} best groups have {} experts, fewer than top_k: {}", top_groups,
                         top_groups * (experts / groups), k),
             "increase top_groups"}};
  return {};
}

/// The faults of combinations of fields, such as more chosen experts than there are experts.
std::vector<FieldFault> moe_faults(const Attrs& attrs) {
  const int64_t experts = attrs.integer("experts", 1), k = attrs.integer("top_k", 1);
  if (k > experts) return {{"top_k", fmt::format("top_k: {} is more than the {} experts", k, experts), ""}};
  std::vector<FieldFault> faults = group_faults(attrs, experts, k);
  const std::string balance = attrs.text("router.balance", "none");
  if (attrs.integer("shared_hidden", 0) > 0 && attrs.text("activation", "swiglu") == "clamped_swiglu")
    faults.push_back({"shared_hidden", "a shared expert has no activation clamped_swiglu",
                      "remove shared_hidden, or set another activation"});
  if (balance == "none" && attrs.has("router.aux_loss"))
    faults.push_back({"router.aux_loss", "the coefficient has no effect, because router.balance is none",
                      "set balance: aux_loss, or balance: bias"});
  if (balance != "bias" && attrs.has("router.bias_speed"))
    faults.push_back({"router.bias_speed", "router.balance is " + balance + ", so there is no bias",
                      "set balance: bias, or remove bias_speed"});
  if (attrs.flag("drop") && attrs.number("capacity", 2.0) < 1)
    faults.push_back({"capacity", "drop: true needs a capacity of at least 1", ""});
  return faults;
}

/// The coefficient of the auxiliary loss; 0: none.
double aux_loss_of(const Attrs& fields) {
  const std::string balance = fields.text("router.balance");
  return balance == "none" ? 0.0 : fields.number("router.aux_loss", balance == "aux_loss" ? kAuxLoss : 0.0);
}

Attrs route_attrs(const Attrs& fields) {
  Attrs attrs{{"top_k", fields.integer("top_k")},
              {"score", fields.text("router.score")},
              {"normalize", fields.flag("router.normalize")},
              {"scale", fields.number("router.scale")}};
  const int64_t groups = fields.integer("router.groups");
  if (groups > 1) {
    attrs.set("groups", groups);
    attrs.set("top_groups", fields.integer("router.top_groups", groups));
  }
  return attrs;
}

/// Emits the router of one layer: the weights and ids of the chosen experts.
class RouterNodes {
 public:
  /// `is_copy`: the layer of a reference model, which reads the parameters of the trained one and is not trained.
  RouterNodes(LayerContext& layer, TensorId scores, bool is_copy)
      : layer_(layer), b_(layer.builder), fields_(layer.attrs), scores_(scores), counts_(!is_copy && !layer.hybrid) {
    if (layer.hybrid && (fields_.text("router.balance") != "none" || fields_.number("router.z_loss") > 0))
      throw ShapeError(
          "the balance of experts is computed over the whole batch, but a rank in hybrid_parallel knows only its own "
          "part of it; use parallel.mode: semi_auto_parallel",
          "router");
  }

  std::vector<TensorId> emit() {
    std::vector<TensorId> inputs = {scores_};
    const bool has_bias = fields_.text("router.balance") == "bias";
    const int64_t experts = fields_.integer("experts");
    if (counts_ || has_bias) state_ = b_.state(kExpertLoadState, {LoadPlaces{experts}.size()}, 0);
    if (has_bias) {
      const TensorId bias = b_.state(kBalanceBiasState, {experts}, 0);
      inputs.push_back(
          b_.emit("balance_bias", {bias, state_}, {{"speed", fields_.number("router.bias_speed", 0.001)}}, "bias")[0]);
    }
    const std::vector<TensorId> chosen = b_.emit("route", inputs, route_attrs(fields_), "route");
    TensorId weights = chosen[0], ids = chosen[1];
    if (fields_.flag("drop")) ids = b_.emit("drop_pairs", {chosen[1]}, drop_attrs(), "drop")[0];
    if (counts_) weights = balanced(weights, count(chosen[1], ids), chosen[1]);
    return {weights, ids};
  }

 private:
  bool by_sequence() const { return fields_.text("router.aux_over") == "sequence"; }

  Attrs drop_attrs() const {
    const Shape& x = layer_.shape();
    if (x.size() < 3)
      throw ShapeError(fmt::format("pairs are dropped by their position in a sequence, but the input is {}, expected "
                                   "[batch, sequence, features]",
                                   to_string(x)),
                       "drop");
    const int64_t experts = fields_.integer("experts");
    const double pairs = static_cast<double>(num_elements(x) / x[0] / x.back() * fields_.integer("top_k"));
    const double most = std::floor(fields_.number("capacity") * pairs / static_cast<double>(experts));
    if (most < 1)
      throw ShapeError(fmt::format("a sequence has {} (token, expert) pairs, so {} experts with this capacity would "
                                   "keep none of them",
                                   pairs, experts),
                       "capacity");
    return {{"experts", experts}, {"most", static_cast<int64_t>(std::min(most, pairs))}};
  }

  /// Adds the load of the micro-batch to that of the step.
  TensorId count(TensorId ids, TensorId kept) {
    std::vector<TensorId> inputs = {scores_, ids};
    if (kept != ids) inputs.push_back(kept);
    Attrs attrs{{"score", fields_.text("router.score")}};
    if (aux_loss_of(fields_) == 0 || by_sequence()) attrs.set(kAddsUp, true);
    const TensorId load = b_.emit("expert_load", inputs, attrs, "load")[0];
    b_.emit("count_load", {load, state_}, {}, "count");
    return load;
  }

  /// Adds the node that contributes the balance loss and the z-loss; returns the weights that it passes on.
  TensorId balanced(TensorId weights, TensorId load, TensorId ids) {
    const double aux_loss = aux_loss_of(fields_), z_loss = fields_.number("router.z_loss");
    if (aux_loss == 0 && z_loss == 0) return weights;
    const Shape& x = layer_.shape();
    const int64_t rows = num_elements(x) / x.back();
    const auto shares = static_cast<double>(layer_.micro_batches);
    Attrs attrs{{"top_k", fields_.integer("top_k")},
                {"score", fields_.text("router.score")},
                {"rows", rows},
                {"of_load", rows},
                {"coefficient", aux_loss / shares},
                {"z_loss", z_loss / shares}};
    std::vector<TensorId> inputs = {weights, scores_};
    if (aux_loss > 0 && by_sequence()) {
      if (x.size() < 3)
        throw ShapeError(fmt::format("the input is {}, expected [batch, sequence, features]", to_string(x)),
                         "router.aux_over");
      attrs.set("by_sequence", true);
      attrs.set("of_load", rows / x[0]);
      inputs.push_back(b_.emit("sequence_load", {ids}, {{"experts", fields_.integer("experts")}}, "sequences")[0]);
    } else if (aux_loss > 0) {
      inputs.push_back(load);
    }
    return b_.emit("balance_losses", inputs, attrs, "balance_losses")[0];
  }

  LayerContext& layer_;
  LayerBuilder& b_;
  const Attrs& fields_;
  const TensorId scores_;
  const bool counts_;
  TensorId state_ = -1;
};

/// The nodes of the layer: scores of the router, choice of experts, and the experts.
LayerOutputs emit_moe(LayerContext& layer) {
  LayerBuilder& b = layer.builder;
  const int64_t experts = layer.attrs.integer("experts"), hidden = layer.attrs.integer("hidden"),
                features = layer.shape().back();
  const std::string activation = layer.attrs.text("activation");
  const int64_t parts = is_gated(expert_activation({{"function", activation}})) ? 2 : 1;
  const TensorId x = layer.inputs[0];
  const TensorId router = b.parameter("router", {experts, features}, linear_init(features));
  const bool is_copy = layer.graph.tensors[static_cast<size_t>(router)].name != b.name() + ".router";
  TensorId scores = b.emit("matmul", {x, router}, {{"transpose_b", true}}, "scores")[0];
  if (layer.attrs.flag("router.bias")) {
    const TensorId bias = b.parameter("router_bias", {experts}, constant_init(0));
    scores = b.emit("add_bias", {scores, bias}, {}, "biased_scores")[0];
  }
  const std::vector<TensorId> chosen = RouterNodes(layer, scores, is_copy).emit();
  const TensorId up = b.parameter("up", {experts, parts, hidden, features}, linear_init(features));
  const TensorId down = b.parameter("down", {experts, features, hidden}, linear_init(hidden));
  std::vector<TensorId> inputs = {x, chosen[0], chosen[1], up, down};
  if (layer.attrs.flag("bias")) {
    inputs.push_back(b.parameter("up_bias", {experts, parts, hidden}, constant_init(0)));
    inputs.push_back(b.parameter("down_bias", {experts, features}, constant_init(0)));
  }
  return b.emit("experts", inputs,
                {{"experts", experts},
                 {"function", activation},
                 {"capacity", layer.attrs.number("capacity")},
                 {"block", hidden / blocks_of_hidden(hidden)}})[0];
}

/// The shared expert, which all tokens pass through: dense layers and their sum with the routed experts.
std::vector<AddedLayer> shared_expert(const Attrs& fields) {
  const int64_t hidden = fields.integer("shared_hidden", 0);
  if (hidden < 1) return {};
  const std::string function = fields.text("activation", "swiglu");
  const bool gated = is_gated(expert_activation({{"function", function}}));
  const Attrs first{{"units", hidden}, {"bias", false}}, last{{"bias", false}};
  const std::string activation = function == "swiglu" ? "silu" : function == "geglu" ? "gelu" : function;
  const Attrs of_activation = activation == "gelu" ? Attrs{{"approximate", std::string("tanh")}} : Attrs{};
  std::vector<AddedLayer> layers;
  if (gated) {
    layers.push_back({"shared_gate", "dense", {kLayerInput}, first});
    layers.push_back({"shared_act", activation, {"shared_gate"}, of_activation});
    layers.push_back({"shared_up", "dense", {kLayerInput}, first});
    layers.push_back({"shared_gated", "mul", {"shared_act", "shared_up"}});
  } else {
    layers.push_back({"shared_up", "dense", {kLayerInput}, first});
    layers.push_back({"shared_act", activation, {"shared_up"}, of_activation});
  }
  layers.push_back({"shared_down", "dense", {layers.back().suffix}, last});
  layers.push_back({"shared", "add", {kLayerOutput, "shared_down"}});
  return layers;
}

}  // namespace

extern const LayerDef moe_layer = {
    .name = "moe",
    .doc =
        "Mixture of experts: a router chooses top_k experts for each token (row); the output is the weighted sum of "
        "their outputs. Weights: router [experts, features], up [experts, 1 or 2, hidden, features], down [experts, "
        "features, hidden], and biases if requested.",
    .fields =
        {integer("experts", "Number of experts.").required().at_least(1).at_most(kMaxSize),
         integer("top_k", "Number of experts per token.").required().at_least(1).at_most(kMaxSize),
         integer("hidden", "Number of hidden features of each expert.").required().at_least(1).at_most(kMaxSize),
         text("activation",
              "Activation function between the two matrix products of an expert. swiglu and geglu are gated: act(gate) "
              "* up, where the first weight has two parts, the gate first. clamped_swiglu (gpt-oss): gate * "
              "sigmoid(1.702 gate) * (up + 1), with gate at most 7 and up between -7 and 7.")
             .one_of({"swiglu", "geglu", "clamped_swiglu", "silu", "gelu", "relu"})
             .defaults(std::string("swiglu")),
         flag("bias", false,
              "Add a bias to both matrix products of each expert: up_bias [experts, 1 or 2, hidden] and down_bias "
              "[experts, features], initially 0."),
         integer("shared_hidden",
                 "Number of hidden features of a shared expert, which processes every token: dense layers "
                 "NAME.shared_gate, NAME.shared_up and NAME.shared_down, whose output is added. 0: no shared expert.")
             .defaults(int64_t{0})
             .at_least(0)
             .at_most(kMaxSize),
         text("router.score",
              "Function that computes the router's scores: the softmax over all experts, or the sigmoid of each logit.")
             .one_of({"softmax", "sigmoid"})
             .defaults(std::string("softmax")),
         flag("router.bias", false, "Add a bias to the router's logits: router_bias [experts], initially 0."),
         flag("router.normalize", true, "Divide the weights of a token's experts by their sum."),
         number("router.scale", "Factor by which the weights of the experts are multiplied (routed_scaling_factor).")
             .defaults(1.0)
             .above(0),
         integer("router.groups",
                 "Number of groups of experts; a token's experts are chosen from its best groups (DeepSeek).")
             .defaults(int64_t{1})
             .at_least(1)
             .at_most(kMaxSize),
         integer("router.top_groups",
                 "Number of groups from which a token's experts are chosen. If omitted, all groups.")
             .at_least(1)
             .at_most(kMaxSize),
         text("router.balance",
              "How the load of the experts is balanced. aux_loss: the auxiliary loss experts * sum of f_e P_e is also "
              "minimized, where f_e is the fraction of tokens that choose expert e and P_e is the mean probability of "
              "expert e. bias: each step adjusts a bias, which is used when experts are chosen, to equalize the loads "
              "without a loss (DeepSeek-V3).")
             .one_of({"aux_loss", "bias", "none"})
             .defaults(std::string("none")),
         number("router.aux_loss", "Coefficient of the auxiliary loss. If omitted, 0.01 for aux_loss and 0 for bias.")
             .at_least(0),
         text("router.aux_over",
              "Tokens over which f_e and P_e are computed: a micro-batch, or each sequence, in which case f_e is also "
              "divided by top_k (DeepSeek-V2).")
             .one_of({"batch", "sequence"})
             .defaults(std::string("batch")),
         number("router.z_loss",
                "Coefficient of the router z-loss, the mean of log(sum of e^logit)^2, which keeps the logits small.")
             .defaults(0.0)
             .at_least(0),
         number("router.bias_speed",
                "With balance: bias, the amount by which each step changes the bias of an expert. If omitted, 0.001.")
             .above(0),
         number(
             "capacity",
             "Memory of each rank for (token, expert) pairs, as a multiple of the mean number of pairs. A rank with "
             "only some of the experts stops the run if its experts receive more; a rank with all experts never does.")
             .defaults(2.0)
             .at_least(1),
         flag("drop", false,
              "Drop tokens that exceed an expert's capacity. Each expert processes at most capacity times the mean "
              "number of pairs of a sequence, in the order of the sequence, and later tokens skip the expert. The run "
              "then never stops for lack of memory.")},
    .faults = moe_faults,
    .added = shared_expert,
    .emit = emit_moe,
};

int expert_factor(const Graph& graph, LayerId layer) {
  const NodeId node = expert_call(graph, layer).node;
  return node < 0 ? -1 : graph.nodes[static_cast<size_t>(node)].rule.inputs[4][0][0];
}

ExpertCall expert_call(const Graph& graph, LayerId layer) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.layer != layer || node.op != experts_op.name) continue;
    const Tensor& up = graph.tensors[static_cast<size_t>(node.inputs[3])];
    return {static_cast<NodeId>(n), node.attrs.number("capacity"), up.shape[1] * up.shape[2] * byte_size(up.dtype)};
  }
  return {};
}

int64_t experts_per_token(const Graph& graph, LayerId layer) {
  for (const Node& node : graph.nodes)
    if (node.layer == layer && node.op == route_op.name) return node.attrs.integer("top_k");
  return 0;
}

extern const OpFamily moe_family = {
    .ops = {&route_op, &route_grad_op, &experts_op, &experts_grad_op, &expert_load_op, &sequence_load_op,
            &count_load_op, &balance_bias_op, &balance_op, &balance_grad_op, &drop_pairs_op},
    .kernels = {&place_tokens_kernel, &pack_tokens_kernel, &sum_tokens_kernel},
    .layers = {&moe_layer},
    .profile_part = "experts"};

}  // namespace trainctl
