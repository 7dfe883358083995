// y = exp(x) / sum exp(x) along attr dim; dx = y * (dy - sum dy * y).
// If dim is cut, ranks exchange for each row (top, sum of e^(x - top)), and sum dy * y.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef softmax_op;

namespace {

/// The shape of statistics of rows: the dims other than attr dim, then `numbers` numbers.
template <int numbers>
Shape of_rows(Infos in, const Attrs& attrs) {
  Shape shape = in[0].shape;
  shape.erase(shape.begin() + attrs.integer("dim"));
  shape.push_back(numbers);
  return shape;
}

const Attrs kSoftmaxAlongRows = {{"dim", int64_t{1}}};
const int64_t kSoftmaxParts = 4;  // shards of each row in the examples

/// Checks the inputs of a kernel of statistics and returns its output, `numbers` numbers per row. `given`: the number
/// of inputs, 1 (x) or 2 (dy and y).
template <int numbers, size_t given>
std::vector<TensorInfo> stats_outputs(Infos in, const Attrs& attrs, DType) {
  expect_inputs("softmax", in, given, given);
  (void)softmax_op.infer(in.first(1), attrs);
  return {{of_rows<numbers>(in, attrs)}};
}
template <int numbers, size_t given>
std::vector<TensorInfo> apply_outputs(Infos in, const Attrs& attrs, DType) {
  expect_inputs("softmax", in, given + 1, given + 1);
  (void)softmax_op.infer(in.first(1), attrs);
  example::expect_parts(in, given + 1, of_rows<numbers>(in, attrs));
  return {in[0]};
}

}  // namespace

extern const KernelDef softmax_stats_kernel = {
    .name = "softmax_stats",
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "(top, sum e^(x - top)) of each row of a shard",
                               .inputs = {{kMatrix}},
                               .attrs = kSoftmaxAlongRows,
                               .outputs = stats_outputs<2, 1>};
        },
};

/// (x, stats [parts, .., 2]) -> y
extern const KernelDef softmax_apply_kernel = {
    .name = "softmax_apply",
    .in_place = InPlace::first_on_first,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "y of a shard; inputs x, (top, sum) of all shards",
                               .inputs = {{kMatrix}, f32({kSoftmaxParts, kRows, 2})},
                               .attrs = kSoftmaxAlongRows,
                               .outputs = apply_outputs<2, 1>};
        },
};

extern const KernelDef softmax_grad_stats_kernel = {
    .name = "softmax_grad_stats",
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "sum dy * y of each row of a shard; inputs dy, y",
                               .inputs = {{kMatrix}, {kMatrix}},
                               .attrs = kSoftmaxAlongRows,
                               .outputs = stats_outputs<1, 2>};
        },
};

/// (dy, y, stats [parts, .., 1]) -> dx
extern const KernelDef softmax_grad_apply_kernel = {
    .name = "softmax_grad_apply",
    .in_place = InPlace::first_on_first,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "dx of a shard; inputs dy, y, sums of all shards",
                               .inputs = {{kMatrix}, {kMatrix}, f32({kSoftmaxParts, kRows, 1})},
                               .attrs = kSoftmaxAlongRows,
                               .outputs = apply_outputs<1, 2>};
        },
};

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
      return {.text = dims + "->" + dims, .inner = own};
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
                                          .attrs = kSoftmaxAlongRows};
                   }},
    .inner_sum = InnerSum{&softmax_stats_kernel, of_rows<2>, &softmax_apply_kernel},
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
                         .what = "inputs dy, y", .inputs = {{kMatrix}, {kMatrix}}, .attrs = kSoftmaxAlongRows};
                   }},
    .inner_sum = InnerSum{&softmax_grad_stats_kernel, of_rows<1>, &softmax_grad_apply_kernel},
};

extern const LayerDef softmax_layer = {
    .name = "softmax",
    .doc = "Computes exp(x) / sum exp(x).",
    .fields = {integer("dim", "The dim along which the results sum to 1.").defaults(int64_t{-1})},
    .emit =
        [](LayerContext& layer) {
          return layer.emit("softmax", {{"dim", layer.non_negative_dim(layer.attrs.integer("dim"))}});
        },
};

namespace {

/// x - m - log(sum e^(x - m)), where m is the largest x of the dim.
TensorId emit_log_softmax(LayerContext& layer) {
  LayerBuilder& b = layer.builder;
  const Attrs along{{"dims", Ints{layer.non_negative_dim(layer.attrs.integer("dim"))}}, {"keep_dims", true}};
  const TensorId x = layer.inputs[0], largest = b.emit("reduce_max", {x}, along, "largest")[0],
                 moved = b.emit("sub", {x, largest}, {}, "moved")[0], powers = b.emit("exp", {moved}, {}, "exp")[0],
                 sum = b.emit("reduce_sum", {powers}, along, "sum")[0], log = b.emit("log", {sum}, {}, "log")[0];
  return b.emit("sub", {moved, log})[0];
}

}  // namespace

extern const LayerDef log_softmax_layer = {
    .name = "log_softmax",
    .doc = "Logarithm of softmax, x - log sum exp(x): the log-probabilities that the loss kl_div reads.",
    .fields = {integer("dim", "The dim along which the exponentials of the results sum to 1.").defaults(int64_t{-1})},
    .emit = emit_log_softmax,
};

extern const OpFamily softmax_family = {
    .ops = {&softmax_op, &softmax_grad_op},
    .kernels = {&softmax_stats_kernel, &softmax_apply_kernel, &softmax_grad_stats_kernel, &softmax_grad_apply_kernel},
    .layers = {&softmax_layer, &log_softmax_layer}};

}  // namespace trainctl
