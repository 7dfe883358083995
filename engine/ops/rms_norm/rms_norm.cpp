// y = x * rstd (* gamma), rstd = 1 / sqrt(mean(x^2) + eps) over the last dim (Zhang and Sennrich 2019). With attr
// offset gamma is the parameter plus that number (Gemma: 1). x [.., d] -> y, rstd [..] If d is cut, ranks exchange one
// number per row: the sum x^2 of their part, and in the backward pass sum g * xhat, g = dy * gamma.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/norm_grad.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef rms_norm_op;

namespace {

void expect_rms_norm_grad(Infos in) {
  using namespace example;
  expect(in.size() >= 3 && in.size() <= 4, "it expects dy, x, rstd");
  expect_shape(in[1], in[0].shape, "x");
  expect_shape(in[2], leading(in[0]), "a number of each row");
  if (in.size() == 4) expect_shape(in[3], {in[0].shape.back()}, "gamma");
}

/// The shape of the statistics that ranks exchange: one number for each row.
Shape rms_stats_shape(Infos in, const Attrs&) {
  Shape shape = in[0].shape;
  shape.back() = 1;
  return shape;
}
std::vector<TensorInfo> rms_stats_of(Infos in, const Attrs& attrs, DType) {
  expect_ndim("rms_norm", in[0], 1);
  return {{rms_stats_shape(in, attrs)}};
}

/// The attrs that the gradient shares with the forward op.
Attrs scale_attrs(const Attrs& attrs) {
  Attrs shared;
  if (const Value* offset = attrs.find("offset")) shared.set("offset", *offset);
  return shared;
}

/// Emits the norm for each of `heads` heads of equal size, with a weight that all heads share. Reshapes before and
/// after it give the heads a dim.
TensorId emit_by_heads(LayerContext& layer, int64_t heads, const Attrs& attrs) {
  const Shape whole = layer.shape();
  if (whole.back() % heads != 0)
    throw ShapeError(fmt::format("rms_norm: the {} features of {} cannot be divided into {} heads of the same size",
                                 whole.back(), to_string(whole), heads),
                     "heads");
  Shape parts = whole;
  parts.back() = heads;
  parts.push_back(whole.back() / heads);
  const TensorId x = layer.builder.emit("reshape", {layer.inputs[0]}, {{"shape", parts}}, "heads")[0];
  const TensorId y = layer.builder.emit("rms_norm", layer.with_affine({x}, {parts.back()}, false), attrs, "norm")[0];
  return layer.builder.emit("reshape", {y}, {{"shape", whole}})[0];
}

const int64_t kRmsNormParts = 4;  // shards of each row in the examples

}  // namespace

extern const KernelDef rms_norm_stats_kernel = {
    .name = "rms_norm_stats",
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "sum x^2 of each row of a shard", .inputs = {{kMatrix}}, .outputs = rms_stats_of};
        },
};

/// (x[, gamma], stats [parts, .., 1]) -> y, rstd
extern const KernelDef rms_norm_apply_kernel = {
    .name = "rms_norm_apply",
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "y of a shard, rstd; inputs x(, gamma), sums of all shards",
                               .inputs = {{kMatrix}, {kRow}, f32({kRmsNormParts, kRows, 1})},
                               .attrs = {{"eps", 1e-5}},
                               .outputs = [](Infos in, const Attrs& attrs, DType) {
                                 expect(in.size() >= 2, "it expects x(, gamma) and the sums of all shards");
                                 expect_parts(in, in.size(), rms_stats_shape(in, attrs));
                                 return rms_norm_op.infer(in.first(in.size() - 1), attrs);
                               }};
        },
};

extern const KernelDef rms_norm_grad_stats_kernel = {
    .name = "rms_norm_grad_stats",
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "sum g * xhat of each row of a shard, g = dy * gamma; inputs dy, x, rstd(, gamma)",
              .inputs = {{kMatrix}, {kMatrix}, f32(kColumn), {kRow}},
              .outputs = rms_stats_of,
              .expect = expect_rms_norm_grad};
        },
};

/// (dy, x, rstd[, gamma], stats [parts, .., 1]) -> dx
extern const KernelDef rms_norm_grad_apply_kernel = {
    .name = "rms_norm_grad_apply",
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "dx of a shard; inputs dy, x, rstd(, gamma), sums of all shards",
                               .inputs = {{kMatrix}, {kMatrix}, f32(kColumn), {kRow}, f32({kRmsNormParts, kRows, 1})},
                               .outputs = [](Infos in, const Attrs& attrs, DType) -> std::vector<TensorInfo> {
                                 expect(in.size() >= 4, "it expects dy, x, rstd(, gamma) and the sums of all shards");
                                 expect_rms_norm_grad(in.first(in.size() - 1));
                                 expect_parts(in, in.size(), rms_stats_shape(in, attrs));
                                 return {in[0]};
                               }};
        },
};

extern const OpDef rms_norm_op = {
    .name = "rms_norm",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("rms_norm", in, 1, 2);
      expect_floats("rms_norm", in);
      expect_ndim("rms_norm", in[0], 2);
      if (in.size() == 2) expect_shape("rms_norm", "the weight", in[1], {in[0].shape.back()});
      return {in[0], {example::leading(in[0])}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = letters(in[0].shape.size() - 1, "d");
      return {.text = rows + "d" + (in.size() == 2 ? ",d" : "") + "->" + rows + "d," + rows, .inner = "d"};
    },
    .backward =
        [](GradBuilder& g) {
          std::vector<TensorId> inputs = {g.out_grad(), g.in(0), g.out(1)};
          if (g.num_inputs() == 2) g.set_in_grad(1, "rms_norm_param_grad", inputs);
          if (g.num_inputs() == 2) inputs.push_back(g.in(1));
          g.set_in_grad(0, "rms_norm_grad", inputs, scale_attrs(g.attrs()));
        },
    .kernel = {.name = "rms_norm",
               .cost = elementwise_cost<4>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs x(, gamma)",
                                          .inputs = {{kMatrix}, {kRow}},
                                          .attrs = {{"eps", 1e-5}},
                                          .optional = {{"offset", 1.0}}};
                   }},
    .inner_sum = InnerSum{&rms_norm_stats_kernel, rms_stats_shape, &rms_norm_apply_kernel, 1},
};

/// (dy, x, rstd[, gamma][, residual]) -> dx(, dgamma)
extern const OpDef rms_norm_grad_op = {
    .name = "rms_norm_grad",
    .infer = [](Infos in, const Attrs& attrs) { return infer_norm_grad("rms_norm_grad", in, attrs, 4, 1); },
    .kernel = {.name = "rms_norm_grad",
               .accumulates = 2,
               .takes = bits(EpilogueStep::residual, EpilogueStep::parameter_grads),
               .cost = elementwise_cost<8>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dx; inputs dy, x, rstd(, gamma)",
                                          .inputs = {{kMatrix}, {kMatrix}, f32(kColumn), {kRow}},
                                          .expect = expect_rms_norm_grad};
                   }},
    .inner_sum = InnerSum{&rms_norm_grad_stats_kernel, rms_stats_shape, &rms_norm_grad_apply_kernel},
};

/// (dy, x, rstd) -> dgamma
extern const OpDef rms_norm_param_grad_op = {
    .name = "rms_norm_param_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("rms_norm_param_grad", in, 3, 3);
      expect_ndim("rms_norm_param_grad", in[1], 1);
      return {{{in[1].shape.back()}}};
    },
    .kernel = {.name = "rms_norm_param_grad",
               .accumulates = 1,
               .as_epilogue = [](const Attrs&) { return EpilogueRole{EpilogueStep::parameter_grads}; },
               .cost = reduction_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dgamma; inputs dy, x, rstd",
                                          .inputs = {{kMatrix}, {kMatrix}, f32(kColumn)},
                                          .expect = expect_rms_norm_grad};
                   }},
};

extern const LayerDef rms_norm_layer = {
    .name = "rms_norm",
    .doc = "Divides by the root mean square over the last dim.",
    .fields = {eps_field(), flag("affine", true, "Train a scale."), scale_init_field(),
               integer("heads",
                       "Number of heads in the last dim that are normalized separately; they share one scale (as in "
                       "Qwen3's q and k norms).")
                   .defaults(int64_t{1})
                   .at_least(1)
                   .at_most(kMaxSize),
               number("offset",
                      "Constant added to the trained scale, whose initial values are 1 - offset. Gemma uses 1.")
                   .defaults(0.0)},
    .faults = [](const Attrs& attrs) -> std::vector<FieldFault> {
      if (attrs.flag("affine", true) || attrs.number("offset", 0) == 0) return {};
      return {{"offset", "there is no scale to add an offset to: affine is false", "remove offset"}};
    },
    .emit =
        [](LayerContext& layer) {
          Attrs attrs{{"eps", layer.attrs.number("eps")}};
          const double offset = layer.attrs.number("offset");
          if (offset != 0) attrs.set("offset", offset);
          const int64_t heads = layer.attrs.integer("heads");
          if (heads > 1) return emit_by_heads(layer, heads, attrs);
          return layer.builder.emit("rms_norm", layer.with_affine({layer.inputs[0]}, {layer.shape().back()}, false),
                                    std::move(attrs))[0];
        },
};

extern const OpFamily rms_norm_family = {.ops = {&rms_norm_op, &rms_norm_grad_op, &rms_norm_param_grad_op},
                                         .kernels = {&rms_norm_stats_kernel, &rms_norm_apply_kernel,
                                                     &rms_norm_grad_stats_kernel, &rms_norm_grad_apply_kernel},
                                         .layers = {&rms_norm_layer},
                                         .profile_part = "norms"};

}  // namespace trainctl
