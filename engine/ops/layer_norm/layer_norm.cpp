// y = (x - mean) * rstd (* gamma + beta), mean and rstd = 1 / sqrt(var + eps) over the last dim.
// x [.., d] -> y, mean [..], rstd [..]
#include "engine/ops/elementwise.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"

namespace trainctl {
namespace {

Shape rows_of(const TensorInfo& x) { return Shape(x.shape.begin(), x.shape.end() - 1); }

}  // namespace

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
      return {text + "->" + rows + "d," + rows + "," + rows, "d", "layer_norm needs the whole last dim on one rank"};
    },
    .cost = elementwise_cost<8>,
    .backward =
        [](GradBuilder& g) {
          std::vector<TensorId> inputs = {g.out_grad(), g.in(0), g.out(1), g.out(2)};
          if (g.num_inputs() == 3) g.set_in_grads({1, 2}, "layer_norm_param_grad", inputs);
          if (g.num_inputs() == 3) inputs.push_back(g.in(1));
          g.set_in_grad(0, "layer_norm_grad", inputs);
        },
};

/// (dy, x, mean, rstd[, gamma]) -> dx
extern const OpDef layer_norm_grad_op = {
    .name = "layer_norm_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("layer_norm_grad", in, 4, 5);
      return {in[1]};
    },
    .cost = elementwise_cost<12>,
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
    .cost =
        [](Infos in, Infos out, const Attrs&) {
          Cost cost = traffic_cost(in, out, 0);
          cost.flops = 4.0 * static_cast<double>(num_elements(in[1].shape));
          return cost;
        },
    .can_accumulate = 3,
};

extern const LayerDef layer_norm_layer = {
    .name = "layer_norm",
    .doc = "Normalises the last dim.",
    .fields = {eps_field(), affine_field()},
    .emit =
        [](LayerContext& layer) {
          std::vector<TensorId> inputs = {layer.inputs[0]};
          if (layer.attrs.flag("affine")) {
            inputs.push_back(layer.builder.parameter("weight", {layer.shape().back()}, constant_init(1)));
            inputs.push_back(layer.builder.parameter("bias", {layer.shape().back()}, constant_init(0)));
          }
          return layer.builder.emit("layer_norm", inputs, {{"eps", layer.attrs.number("eps")}})[0];
        },
};

}  // namespace trainctl
