// y = exp(x) / sum exp(x) along attr dim; dx = y * (dy - sum dy * y).
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef softmax_op = {
    .name = "softmax",
    .infer =
        [](Infos in, const Attrs& attrs) {
          const int64_t dim = attrs.integer("dim");
          auto out = infer_elementwise("softmax", in, 1);
          if (dim < 0 || dim >= static_cast<int64_t>(in[0].shape.size())) {
            shape_error(fmt::format("softmax: there is no dim {} in {}", dim, to_string(in[0])));
          }
          return out;
        },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const std::string dims = letters(in[0].shape.size());
      const std::string own(1, dims.at(attrs.integer("dim")));
      return {dims + "->" + dims, own, "softmax needs its whole dim on one rank"};
    },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "softmax_grad", {g.out_grad(), g.out()}, g.attrs());
        },
    .kernel = {.name = "softmax",
               .cost = elementwise_cost<12>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = exp(x) / sum exp(x) along dim",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"dim", int64_t{1}}}};
                   }},
};

/// (dy, y) -> dx
extern const OpDef softmax_grad_op = {
    .name = "softmax_grad",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("softmax_grad", in, 2); },
    .kernel = {.name = "softmax_grad",
               .cost = elementwise_cost<4>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what = "inputs dy, y", .inputs = {{kMatrix}, {kMatrix}}, .attrs = {{"dim", int64_t{1}}}};
                   }},
};

extern const LayerDef softmax_layer = {
    .name = "softmax",
    .doc = "exp(x) / sum exp(x).",
    .fields = {integer("dim", "The dim along which the result adds up to 1.").defaults(int64_t{-1})},
    .emit =
        [](LayerContext& layer) {
          return layer.emit("softmax", {{"dim", layer.non_negative_dim(layer.attrs.integer("dim"))}});
        },
};

extern const OpFamily softmax_family = {.ops = {&softmax_op, &softmax_grad_op}, .layers = {&softmax_layer}};

}  // namespace trainctl
