// y = (x - mean) * rstd (* gamma + beta), mean and rstd = 1 / sqrt(var + eps) over the last dim.
// x [.., d] -> y, mean [..], rstd [..]
// If d is cut, ranks exchange two numbers per row: (mean, sum (x - mean)^2) of their part, which combine without
// cancellation (Chan, Golub, LeVeque 1979), and in the backward pass (sum g, sum g * xhat), g = dy * gamma.
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/norm_grad.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef layer_norm_op;

namespace {

Shape rows_of(const TensorInfo& x) { return Shape(x.shape.begin(), x.shape.end() - 1); }

void expect_layer_norm_grad(Infos in) {
  using namespace example;
  expect(in.size() >= 4 && in.size() <= 5, "it expects dy, x, mean, rstd");
  expect_shape(in[1], in[0].shape, "x");
  for (size_t i = 2; i < 4; ++i) expect_shape(in[i], leading(in[0]), "a number of each row");
  if (in.size() == 5) expect_shape(in[4], {in[0].shape.back()}, "gamma");
}

/// The shape of the statistics that ranks exchange: two numbers for each row.
Shape stats_shape(Infos in, const Attrs&) {
  Shape shape = in[0].shape;
  shape.back() = 2;
  return shape;
}
std::vector<TensorInfo> stats_of(Infos in, const Attrs& attrs, DType) {
  expect_ndim("layer_norm", in[0], 1);
  return {{stats_shape(in, attrs)}};
}

const int64_t kParts = 4;  // shards of each row in the examples

/// Emits the norm over the last `count` dims, which are merged into one. The scale and the shift then have one dim with
/// the elements of PyTorch in the same order.
TensorId emit_over_dims(LayerContext& layer, int64_t count, const Attrs& attrs) {
  const Shape shape = layer.shape();
  const size_t rows = shape.size() - static_cast<size_t>(std::min<int64_t>(count, static_cast<int64_t>(shape.size())));
  if (rows == 0)
    throw ShapeError(fmt::format("dims: {} covers all dims of its input {}; at least the first must remain", count,
                                 to_string(shape)),
                     "dims");
  LayerBuilder& b = layer.builder;
  const Shape normalised(shape.begin() + static_cast<std::ptrdiff_t>(rows), shape.end());
  Shape flat(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(rows));
  flat.push_back(num_elements(normalised));
  std::vector<TensorId> inputs = {b.emit("reshape", {layer.inputs[0]}, {{"shape", flat}}, "rows")[0]};
  inputs = layer.with_affine(std::move(inputs), {flat.back()});
  const TensorId y = b.emit("layer_norm", inputs, attrs, "normalised")[0];
  return b.emit("reshape", {y}, {{"shape", shape}})[0];
}

}  // namespace

extern const KernelDef layer_norm_stats_kernel = {
    .name = "layer_norm_stats",
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "(mean, sum (x - mean)^2) of each row of a shard", .inputs = {{kMatrix}}, .outputs = stats_of};
        },
};

/// (x[, gamma, beta], stats [parts, .., 2]) -> y, mean, rstd
extern const KernelDef layer_norm_apply_kernel = {
    .name = "layer_norm_apply",
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "y of a shard, mean, rstd; inputs x(, gamma, beta), statistics of all shards",
                               .inputs = {{kMatrix}, {kRow}, {kRow}, f32({kParts, kRows, 2})},
                               .attrs = {{"eps", 1e-5}},
                               .outputs = [](Infos in, const Attrs& attrs, DType) {
                                 expect(in.size() >= 2, "it expects x(, gamma, beta) and the statistics of all shards");
                                 expect_parts(in, in.size(), stats_shape(in, attrs));
                                 return layer_norm_op.infer(in.first(in.size() - 1), attrs);
                               }};
        },
};

extern const KernelDef layer_norm_grad_stats_kernel = {
    .name = "layer_norm_grad_stats",
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "(sum g, sum g * xhat) of each row of a shard, g = dy * gamma; inputs dy, x, mean, rstd(, gamma)",
              .inputs = {{kMatrix}, {kMatrix}, f32(kColumn), f32(kColumn), {kRow}},
              .outputs = stats_of,
              .expect = expect_layer_norm_grad};
        },
};

/// (dy, x, mean, rstd[, gamma], stats [parts, .., 2]) -> dx
extern const KernelDef layer_norm_grad_apply_kernel = {
    .name = "layer_norm_grad_apply",
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "dx of a shard; inputs dy, x, mean, rstd(, gamma), sums of all shards",
              .inputs = {{kMatrix}, {kMatrix}, f32(kColumn), f32(kColumn), {kRow}, f32({kParts, kRows, 2})},
              .outputs = [](Infos in, const Attrs& attrs, DType) -> std::vector<TensorInfo> {
                expect(in.size() >= 5, "it expects dy, x, mean, rstd(, gamma) and the sums of all shards");
                expect_layer_norm_grad(in.first(in.size() - 1));
                expect_parts(in, in.size(), stats_shape(in, attrs));
                return {in[0]};
              }};
        },
};

extern const OpDef layer_norm_op = {
    .name = "layer_norm",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("layer_norm", in, 1, 3);
      expect_floats("layer_norm", in);
      expect_ndim("layer_norm", in[0], 2);
      for (size_t i = 1; i < in.size(); ++i) {
        expect_shape("layer_norm", i == 1 ? "the weight" : "the bias", in[i], {in[0].shape.back()});
      }
      return {in[0], {rows_of(in[0])}, {rows_of(in[0])}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = letters(in[0].shape.size() - 1, "d");
      std::string text = rows + "d";
      for (size_t i = 1; i < in.size(); ++i) text += ",d";
      return {.text = text + "->" + rows + "d," + rows + "," + rows, .inner = "d"};
    },
    .backward =
        [](GradBuilder& g) {
          std::vector<TensorId> inputs = {g.out_grad(), g.in(0), g.out(1), g.out(2)};
          if (g.num_inputs() == 3) g.set_in_grads({1, 2}, "layer_norm_param_grad", inputs);
          if (g.num_inputs() == 3) inputs.push_back(g.in(1));
          g.set_in_grad(0, "layer_norm_grad", inputs);
        },
    .kernel = {.name = "layer_norm",
               .cost = elementwise_cost<8>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs x(, gamma, beta)",
                                          .inputs = {{kMatrix}, {kRow}, {kRow}},
                                          .attrs = {{"eps", 1e-5}}};
                   }},
    .inner_sum = InnerSum{&layer_norm_stats_kernel, stats_shape, &layer_norm_apply_kernel, 1},
};

/// (dy, x, mean, rstd[, gamma][, residual]) -> dx(, dgamma, dbeta)
extern const OpDef layer_norm_grad_op = {
    .name = "layer_norm_grad",
    .infer = [](Infos in, const Attrs& attrs) { return infer_norm_grad("layer_norm_grad", in, attrs, 5, 2); },
    .kernel = {.name = "layer_norm_grad",
               .accumulates = 6,
               .takes = bits(EpilogueStep::residual, EpilogueStep::parameter_grads),
               .cost = elementwise_cost<12>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dx; inputs dy, x, mean, rstd(, gamma)",
                                          .inputs = {{kMatrix}, {kMatrix}, f32(kColumn), f32(kColumn), {kRow}},
                                          .expect = expect_layer_norm_grad};
                   }},
    .inner_sum = InnerSum{&layer_norm_grad_stats_kernel, stats_shape, &layer_norm_grad_apply_kernel},
};

/// (dy, x, mean, rstd) -> dgamma, dbeta
extern const OpDef layer_norm_param_grad_op = {
    .name = "layer_norm_param_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("layer_norm_param_grad", in, 4, 4);
      expect_ndim("layer_norm_param_grad", in[1], 1);
      const TensorInfo row{{in[1].shape.back()}};
      return {row, row};
    },
    .kernel = {.name = "layer_norm_param_grad",
               .accumulates = 3,
               .as_epilogue = [](const Attrs&) { return EpilogueRole{EpilogueStep::parameter_grads}; },
               .cost = reduction_cost<4>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dgamma, dbeta; inputs dy, x, mean, rstd",
                                          .inputs = {{kMatrix}, {kMatrix}, f32(kColumn), f32(kColumn)},
                                          .expect = expect_layer_norm_grad};
                   }},
};

extern const LayerDef layer_norm_layer = {
    .name = "layer_norm",
    .doc = "Normalizes over the last dim, or over several of the last dims.",
    .fields = {eps_field(),
               integer("dims",
                       "Number of trailing dims over which to normalize. The scale and the shift have a single dim "
                       "with the same number of elements.")
                   .defaults(int64_t{1})
                   .at_least(1)
                   .at_most(kMaxDims),
               affine_field(), scale_init_field(), shift_init_field()},
    .emit =
        [](LayerContext& layer) {
          const Attrs attrs{{"eps", layer.attrs.number("eps")}};
          if (layer.attrs.integer("dims") > 1) return emit_over_dims(layer, layer.attrs.integer("dims"), attrs);
          return layer.builder.emit("layer_norm", layer.with_affine({layer.inputs[0]}, {layer.shape().back()}),
                                    attrs)[0];
        },
};

extern const OpFamily layer_norm_family = {.ops = {&layer_norm_op, &layer_norm_grad_op, &layer_norm_param_grad_op},
                                           .kernels = {&layer_norm_stats_kernel, &layer_norm_apply_kernel,
                                                       &layer_norm_grad_stats_kernel, &layer_norm_grad_apply_kernel},
                                           .layers = {&layer_norm_layer},
                                           .profile_part = "norms"};

}  // namespace trainctl
