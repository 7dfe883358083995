// y = keep ? x / (1 - p) : 0. Whether an element is kept depends only on (seed, attr key, step, its index in the whole
// batch's tensor), so the backward pass is the same op on dy. Attr batch: ops/batch_index.h.
#include <fmt/format.h>

#include "engine/base/text.h"
#include "engine/ops/batch_index.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

void expect_place(const TensorInfo& x, const Ints& batch) {
  if (batch.empty()) return;
  const bool fits = batch.size() == 3 && batch[0] > 0 && batch[1] >= 0 && batch[2] > 0 &&
                    batch[1] < static_cast<int64_t>(x.shape.size()) &&
                    x.shape[static_cast<size_t>(batch[1])] % batch[2] == 0;
  if (fits) return;
  shape_error(fmt::format("dropout: batch {} must be [micro-batches, dim, outer] with a dim of {} that outer divides",
                          format_list(batch), to_string(x)));
}

}  // namespace

extern const OpDef dropout_op = {
    .name = "dropout",
    .infer =
        [](Infos in, const Attrs& attrs) {
          const double p = attrs.number("p");
          if (!(p >= 0 && p < 1)) shape_error(fmt::format("dropout: p is {}, expected 0 <= p < 1", p));
          auto out = infer_elementwise("dropout", in, 1);
          expect_place(in[0], attrs.ints("batch"));
          return out;
        },
    .rule = elementwise_rule,
    .backward = [](GradBuilder& g) { g.set_in_grad(0, "dropout", {g.out_grad()}, g.attrs()); },
    .kernel = {.name = "dropout",
               .element =
                   [](const Attrs& attrs) {
                     const BatchPlace batch = BatchPlace::of(attrs);
                     const std::string of_batch =
                         batch.micro_batches == 1
                             ? ""
                             : fmt::format(",{},{},{}", batch.micro_batches, batch.dim, batch.outer);
                     return fmt::format("dropout({},{}{})", attrs.number("p"), attrs.integer("key"), of_batch);
                   },
               .cost = elementwise_cost<20>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = keep ? x / (1 - p) : 0",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"p", 0.1}, {"key", int64_t{1}}},
                                          .optional = {{"batch", Ints{4, 0, 1}}}};
                   }},
    .in_evaluation = InEvaluation::passes_on,
};

extern const LayerDef dropout_layer = {
    .name = "dropout",
    .doc = "Sets random elements to zero during training.",
    .fields = {number("p", "Probability that an element is set to 0.").defaults(0.5).at_least(0).below(1)},
    .emit =
        [](LayerContext& layer) {
          const auto key = static_cast<int64_t>(stable_hash(layer.builder.name()));
          Attrs attrs{{"p", layer.attrs.number("p")}, {"key", key}};
          const BatchRows& rows = layer.batch();
          if (layer.micro_batches > 1)
            attrs.set("batch",
                      rows.dim < 0 ? Ints{layer.micro_batches, 0, 1} : Ints{layer.micro_batches, rows.dim, rows.outer});
          return layer.emit("dropout", attrs);
        },
};

extern const OpFamily dropout_family = {.ops = {&dropout_op}, .layers = {&dropout_layer}};

}  // namespace trainctl
