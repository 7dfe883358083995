// y = (x - mean) * rstd (* gamma + beta), per sample and group of channels (Wu and He 2018). x [n, c, ..] with
// c = groups * k -> y, mean [n, groups], rstd [n, groups]; gamma, beta [c]
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

// A batch of 32 images of 128 channels, 32 x 32, in 32 groups.
const Shape kGroupedImages = {32, 128, 32, 32}, kGroupedChannels = {128}, kGroups = {32, 32};

void expect_group_norm_grad(Infos in) {
  using namespace example;
  expect(in.size() >= 4 && in.size() <= 5 && in[0].shape.size() >= 2, "it expects dy, x [n, c, ..], mean, rstd");
  expect_shape(in[1], in[0].shape, "x");
  expect(in[2].shape.size() == 2 && in[2].shape[0] == in[0].shape[0] && in[0].shape[1] % in[2].shape[1] == 0,
         "mean is [n, groups]");
  expect_shape(in[3], in[2].shape, "rstd");
  if (in.size() == 5) expect_shape(in[4], {in[0].shape[1]}, "gamma");
}

/// A group of one value is its own mean: the output would be constant, as PyTorch refuses too.
void expect_values_per_group(std::string_view layer, std::string_view part, const Shape& in, int64_t groups) {
  if (num_elements(in) / std::max<int64_t>(1, in[0] * groups) >= 2) return;
  shape_error(
      fmt::format("{} needs at least 2 values per {}, but its input {} has 1, so its output would be constant; "
                  "use it before the layers that reduce images to one pixel, or remove it",
                  layer, part, to_string(in)));
}

}  // namespace

extern const OpDef group_norm_op = {
    .name = "group_norm",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("group_norm", in, 1, 3);
      expect_floats("group_norm", in);
      expect_ndim("group_norm", in[0], 2);
      const int64_t channels = in[0].shape[1], groups = attrs.integer("groups");
      if (groups < 1 || channels % groups != 0) {
        shape_error(fmt::format("group_norm: the {} channels in dim 1 of {} cannot be divided evenly into {} groups",
                                channels, to_string(in[0]), groups));
      }
      for (size_t i = 1; i < in.size(); ++i)
        expect_shape("group_norm", i == 1 ? "the weight" : "the bias", in[i], {channels});
      const TensorInfo of_group{{in[0].shape[0], groups}};
      return {in[0], of_group, of_group};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const int64_t groups = attrs.integer("groups");
      const std::string others = letters(in[0].shape.size() - 2, "ngk"), x = "n(gk)" + others;
      std::string text = x;
      for (size_t i = 1; i < in.size(); ++i) text += ",(gk)";
      return {.text = text + "->" + x + ",ng,ng",
              .uncuttable = "k" + others,
              .why_not = "group_norm needs all channels of a group, with every dim after them, on one rank",
              .sizes = {{'g', groups}},
              .why_size = fmt::format("only whole groups can be cut, and their number is {}", groups)};
    },
    .backward =
        [](GradBuilder& g) {
          std::vector<TensorId> inputs = {g.out_grad(), g.in(0), g.out(1), g.out(2)};
          if (g.num_inputs() == 3) g.set_in_grads({1, 2}, "group_norm_param_grad", inputs);
          if (g.num_inputs() == 3) inputs.push_back(g.in(1));
          g.set_in_grad(0, "group_norm_grad", inputs);
        },
    .kernel = {.name = "group_norm",
               .cost = elementwise_cost<8>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs x [n, c, ..](, gamma, beta)",
                                          .inputs = {{kGroupedImages}, {kGroupedChannels}, {kGroupedChannels}},
                                          .attrs = {{"eps", 1e-5}, {"groups", int64_t{32}}}};
                   }},
};

/// (dy, x, mean, rstd[, gamma]) -> dx
extern const OpDef group_norm_grad_op = {
    .name = "group_norm_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("group_norm_grad", in, 4, 5);
      return {in[1]};
    },
    .kernel = {.name = "group_norm_grad",
               .cost = elementwise_cost<12>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what = "dx; inputs dy, x, mean, rstd(, gamma)",
                         .inputs = {{kGroupedImages}, {kGroupedImages}, f32(kGroups), f32(kGroups), {kGroupedChannels}},
                         .expect = expect_group_norm_grad};
                   }},
};

/// (dy, x, mean, rstd) -> dgamma, dbeta
extern const OpDef group_norm_param_grad_op = {
    .name = "group_norm_param_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("group_norm_param_grad", in, 4, 4);
      expect_ndim("group_norm_param_grad", in[1], 2);
      const TensorInfo of_channel{{in[1].shape[1]}};
      return {of_channel, of_channel};
    },
    .kernel = {.name = "group_norm_param_grad",
               .accumulates = 3,
               .cost = reduction_cost<4>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dgamma, dbeta; inputs dy, x, mean, rstd",
                                          .inputs = {{kGroupedImages}, {kGroupedImages}, f32(kGroups), f32(kGroups)},
                                          .expect = expect_group_norm_grad};
                   }},
};

extern const LayerDef group_norm_layer = {
    .name = "group_norm",
    .doc = "Normalizes each group of channels (dim 1) of each sample.",
    .fields = {integer("groups", "Number of groups; must divide the number of channels.")
                   .required()
                   .at_least(1)
                   .at_most(kMaxSize),
               eps_field(), affine_field(), scale_init_field(), shift_init_field()},
    .emit =
        [](LayerContext& layer) {
          if (layer.shape().size() < 2) {
            shape_error(
                fmt::format("group_norm needs channels in dim 1, but its input is {}", to_string(layer.shape())));
          }
          expect_values_per_group("group_norm", "group", layer.shape(), layer.attrs.integer("groups"));
          return layer.builder.emit("group_norm", layer.with_affine({layer.inputs[0]}, {layer.shape()[1]}),
                                    {{"eps", layer.attrs.number("eps")}, {"groups", layer.attrs.integer("groups")}})[0];
        },
};

/// A group for each channel.
extern const LayerDef instance_norm_layer = {
    .name = "instance_norm",
    .doc = "Normalizes each channel (dim 1) of each sample over its pixels.",
    .fields = {eps_field(), flag("affine", false, "Train a scale and a shift."), scale_init_field(),
               shift_init_field()},
    .emit =
        [](LayerContext& layer) {
          const Shape in = layer.shape();
          if (in.size() < 3)
            shape_error(
                fmt::format("instance_norm needs an input [n, c, ..] of at least 3 dims, but got {}", to_string(in)));
          expect_values_per_group("instance_norm", "channel", in, in[1]);
          return layer.builder.emit("group_norm", layer.with_affine({layer.inputs[0]}, {in[1]}),
                                    {{"eps", layer.attrs.number("eps")}, {"groups", in[1]}})[0];
        },
};

extern const OpFamily group_norm_family = {.ops = {&group_norm_op, &group_norm_grad_op, &group_norm_param_grad_op},
                                           .layers = {&group_norm_layer, &instance_norm_layer},
                                           .profile_part = "norms"};

}  // namespace trainctl
