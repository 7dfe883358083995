// The layer of a mixture of experts, and the family of its ops: a router (route.cpp) and the experts (experts.cpp).
#include <fmt/format.h>

#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/moe/experts_size.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef route_op, route_grad_op, experts_op, experts_grad_op;

namespace {

std::vector<FieldFault> moe_faults(const Attrs& attrs) {
  const int64_t experts = attrs.integer("experts", 1), k = attrs.integer("top_k", 1);
  const int64_t groups = attrs.integer("groups", 1), top_groups = attrs.integer("top_groups", groups);
  if (k > experts) return {{"top_k", fmt::format("top_k: {} is more than the {} experts", k, experts), ""}};
  if (groups < 1 || experts % groups != 0)
    return {{"groups", fmt::format("{} experts are not divisible by {} groups", experts, groups), ""}};
  if (top_groups > groups)
    return {{"top_groups", fmt::format("top_groups: {} is more than the {} groups", top_groups, groups), ""}};
  if (top_groups * (experts / groups) < k)
    return {{"top_groups",
             fmt::format("the {} best groups have {} experts, fewer than top_k: {}", top_groups,
                         top_groups * (experts / groups), k),
             "increase top_groups"}};
  return {};
}

Attrs route_attrs(const Attrs& fields) {
  Attrs attrs{{"top_k", fields.integer("top_k")},
              {"score", fields.text("score")},
              {"normalize", fields.flag("normalize")},
              {"scale", fields.number("scale")}};
  const int64_t groups = fields.integer("groups");
  if (groups > 1) {
    attrs.set("groups", groups);
    attrs.set("top_groups", fields.integer("top_groups", groups));
  }
  return attrs;
}

LayerOutputs emit_moe(LayerContext& layer) {
  LayerBuilder& b = layer.builder;
  const int64_t experts = layer.attrs.integer("experts"), hidden = layer.attrs.integer("hidden"),
                features = layer.shape().back();
  const std::string activation = layer.attrs.text("activation");
  const int64_t parts = is_gated(expert_activation({{"function", activation}})) ? 2 : 1;
  const TensorId x = layer.inputs[0];
  const TensorId router = b.parameter("router", {experts, features}, linear_init(features));
  const TensorId scores = b.emit("matmul", {x, router}, {{"transpose_b", true}}, "scores")[0];
  const std::vector<TensorId> chosen = b.emit("route", {scores}, route_attrs(layer.attrs), "route");
  const TensorId up = b.parameter("up", {experts, parts, hidden, features}, linear_init(features));
  const TensorId down = b.parameter("down", {experts, features, hidden}, linear_init(hidden));
  return b.emit("experts", {x, chosen[0], chosen[1], up, down},
                {{"experts", experts},
                 {"function", activation},
                 {"capacity", layer.attrs.number("capacity")},
                 {"block", hidden / blocks_of_hidden(hidden)}})[0];
}

}  // namespace

extern const LayerDef moe_layer = {
    .name = "moe",
    .doc =
        "Mixture of experts: a router chooses top_k experts for each token (row); the output is the weighted sum of "
        "their outputs. No token is dropped. Weights: router [experts, features], up [experts, 1 or 2, hidden, "
        "features], down [experts, features, hidden].",
    .fields =
        {integer("experts", "Number of experts.").required().at_least(1).at_most(kMaxSize),
         integer("top_k", "Number of experts of each token.").required().at_least(1).at_most(kMaxSize),
         integer("hidden", "Hidden features of each expert.").required().at_least(1).at_most(kMaxSize),
         text("activation",
              "Function between the two products of an expert. swiglu and geglu are gated: act(gate) * up, with two "
              "parts in the first weight, the gate first.")
             .one_of({"swiglu", "geglu", "silu", "gelu", "relu"})
             .defaults(std::string("swiglu")),
         text("score", "The router's scores: softmax over all experts, or the sigmoid of each.")
             .one_of({"softmax", "sigmoid"})
             .defaults(std::string("softmax")),
         flag("normalize", true, "Divide the weights of a token's experts by their sum."),
         number("scale", "Factor of the weights (routed_scaling_factor).").defaults(1.0).above(0),
         integer("groups", "Number of groups of experts; a token's experts are chosen from its best groups (DeepSeek).")
             .defaults(int64_t{1})
             .at_least(1)
             .at_most(kMaxSize),
         integer("top_groups", "Number of groups that a token's experts are chosen from; default: all.")
             .at_least(1)
             .at_most(kMaxSize),
         number("capacity",
                "Memory of each rank for (token, expert) pairs, as a multiple of the mean. A rank with a part of the "
                "experts stops the run if its experts receive more; a rank with all experts never does.")
             .defaults(2.0)
             .at_least(1)},
    .faults = moe_faults,
    .emit = emit_moe,
};

extern const OpFamily moe_family = {.ops = {&route_op, &route_grad_op, &experts_op, &experts_grad_op},
                                    .layers = {&moe_layer},
                                    .profile_part = "experts"};

}  // namespace trainctl
