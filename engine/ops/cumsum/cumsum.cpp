// y[.., i, ..] = x[.., 0, ..] + .. + x[.., i, ..] along attr dim, or with attr reverse x[.., i, ..] + .. to the last.
// dx is the sum of dy in the other direction.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef cumsum_op = {
    .name = "cumsum",
    .infer =
        [](Infos in, const Attrs& attrs) {
          auto out = infer_elementwise("cumsum", in, 1);
          const int64_t dim = attrs.integer("dim");
          if (dim < 0 || dim >= static_cast<int64_t>(in[0].shape.size()))
            shape_error(fmt::format("cumsum: there is no dim {} in {}", dim, to_string(in[0])));
          return out;
        },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const std::string dims = letters(in[0].shape.size());
      return {dims + "->" + dims, dims.substr(static_cast<size_t>(attrs.integer("dim")), 1),
              "cumsum needs the whole of the dim that it sums along on one rank"};
    },
    .backward =
        [](GradBuilder& g) {
          Attrs attrs = g.attrs();
          attrs.set("reverse", !attrs.flag("reverse"));
          g.set_in_grad(0, "cumsum", {g.out_grad()}, attrs);
        },
    .kernel = {.name = "cumsum",
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = sums of x from the start of a dim",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"dim", int64_t{1}}},
                                          .optional = {{"reverse", true}}};
                   }},
};

extern const LayerDef cumsum_layer = {
    .name = "cumsum",
    .doc = "Cumulative sum along a dim: each element is the sum of those up to it.",
    .fields = {integer("dim", "Dim along which to sum, other than the batch dim; -1 is the last.").required(),
               flag("reverse", false, "Sum from each element to the last element instead.")},
    .emit =
        [](LayerContext& layer) {
          return layer.emit("cumsum", {{"dim", layer.sample_dim(layer.attrs.integer("dim"))},
                                       {"reverse", layer.attrs.flag("reverse")}});
        },
};

extern const OpFamily cumsum_family = {.ops = {&cumsum_op}, .layers = {&cumsum_layer}};

}  // namespace trainctl
