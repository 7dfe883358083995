// y = the i32 index of the largest x along attr dim; keep_dims keeps that dim with size 1. Among equal elements the
// first one is taken. A NaN is the largest, as in PyTorch. It has no gradient. If no dim is left, y is [1].
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/reduce_sum/reduced_dims.h"

namespace trainctl {
namespace {

Attrs as_reduction(const Attrs& attrs) {
  return {{"dims", Ints{attrs.integer("dim")}}, {"keep_dims", attrs.flag("keep_dims")}};
}

}  // namespace

extern const OpDef argmax_op = {
    .name = "argmax",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      return {{infer_reduction("argmax", in, as_reduction(attrs))[0].shape, DType::i32}};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      return {reduction_rule(in, as_reduction(attrs)), reduced_letters(in, as_reduction(attrs)),
              "argmax needs the whole of the dim on one rank"};
    },
    .kernel = {.name = "argmax",
               .cost = reduction_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = the index of the largest x along a dim",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"dim", int64_t{1}}, {"keep_dims", false}}};
                   }},
};

extern const LayerDef argmax_layer = {
    .name = "argmax",
    .doc = "Index of the largest element along a dim, i32, for gather, one_hot and embedding. It has no gradient.",
    .fields = {integer("dim", "Dim along which to find the largest element, other than the batch dim; -1 is the last.")
                   .defaults(int64_t{-1}),
               flag("keep_dims", false, "Keep the reduced dim with size 1.")},
    .emit =
        [](LayerContext& layer) {
          return layer.emit("argmax", {{"dim", layer.sample_dim(layer.attrs.integer("dim"))},
                                       {"keep_dims", layer.attrs.flag("keep_dims")}});
        },
};

extern const OpFamily argmax_family = {.ops = {&argmax_op}, .layers = {&argmax_layer}};

}  // namespace trainctl
