// y[n, k, p, q] = sum over c, r, s of x[n, c, p * stride + r * dilation - padding, ..] * w[k, c, r, s], as in PyTorch.
// With attr groups the channels are cut into groups, each with its own weights: x [n, (g c), h, w], w [(g k), c, r, s].
// With attr channels_last (images.h) x and y are [n, h, w, c]; w stays as it is. Cutting c leaves y partial over c's
// axes. A bias is an op of its own (add_bias) in the dim of the channels, since a partial sum has none.
// conv_transpose2d is the gradient of x as a forward op: x [n, k, p, q], w [k, c, r, s] -> y [n, c, h, w]; with groups
// y is [n, (g c), h, w].
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/conv2d/conv_ways.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/op_family.h"
#include "engine/ops/window_layer.h"

namespace trainctl {
namespace {

constexpr const char* kWholeGroups =
    "a window reads neighboring rows and columns, which would be on another rank; with groups, only whole groups of "
    "channels can be cut";

int64_t groups_of(const Attrs& attrs) { return attrs.integer("groups", 1); }

Window window_of(const TensorInfo& weight, const Attrs& attrs) {
  Window window = Window::of(attrs);
  window.kernel = {weight.shape[2], weight.shape[3]};
  return window;
}

/// Checks the images, the weight and the window, and returns the shape of the output.
std::vector<TensorInfo> infer_conv2d(Infos in, const Attrs& attrs) {
  const Epilogue epilogue = epilogue_of(attrs);
  const size_t fused = epilogue.bias ? 1 : 0;
  expect_inputs("conv2d", in, 2 + fused, 2 + fused);
  expect_floats("conv2d", in);
  const bool last = is_channels_last(attrs);
  const Images x = expect_images("conv2d", in[0], attrs);
  if (in[1].shape.size() != 4) {
    shape_error(fmt::format("conv2d needs a weight [k, c, r, s], but got {}", to_string(in[1])));
  }
  const int64_t groups = groups_of(attrs), outputs = in[1].shape[0], of_group = in[1].shape[1];
  if (of_group * groups != x.c || outputs % groups != 0) {
    shape_error(fmt::format(
        "conv2d: {} with a weight of {} in {} group{}: the input has {} channels, but the weight needs {} and "
        "produces {}",
        to_string(in[0]), to_string(in[1]), groups, groups == 1 ? "" : "s", x.c, of_group * groups, outputs));
  }
  const Images y = window_output("conv2d", x, window_of(in[1], attrs), outputs);
  if (epilogue.bias) expect_shape("conv2d", "the bias", in[2], {outputs});
  const TensorInfo out{y.shape(last), in[0].dtype};
  if (epilogue.keep_input) return {out, out};
  return {out};
}

/// The rule of a grouped convolution that is not the first node of its layer. The channels of its input are a single
/// factor of the layer, which cannot be divided into groups, so the rule does not shard them.
RuleText whole_channels_rule(const Attrs& attrs) {
  const bool last = is_channels_last(attrs);
  return {image_letters("c", "hw", last) + ",kdrs->" + image_letters("k", "pq", last), "hwpqrskcd",
          "a window reads neighboring rows and columns, which would be on another rank; channels with groups can be "
          "cut only by a conv2d with padding_mode: zeros"};
}

/// Letter g of the rule counts the groups.
void name_groups(RuleText& rule, int64_t groups) {
  rule.sizes = {{'g', groups}};
  rule.why_size = fmt::format("only whole groups can be cut, and their number is {}", groups);
}

RuleText conv2d_rule(Infos, const Attrs& attrs) {
  if (attrs.flag("whole_channels")) return whole_channels_rule(attrs);
  const bool grouped = groups_of(attrs) > 1, last = is_channels_last(attrs);
  const std::string k = grouped ? "(gk)" : "k", c = grouped ? "(gc)" : "c";
  const std::string x = image_letters(c, "hw", last), y = image_letters(k, "pq", last);
  const Epilogue epilogue = epilogue_of(attrs);
  RuleText conv2d_rule = {
      x + "," + k + "crs" + (epilogue.bias ? "," + k : "") + "->" + y + (epilogue.keep_input ? "," + y : ""),
      grouped ? "hwpqrskc" : "hwpqrs", grouped ? kWholeGroups : kWindowsNeedNeighbours};
  if (grouped) name_groups(conv2d_rule, groups_of(attrs));
  return conv2d_rule;
}

/// Multiplications and additions: each output is the sum of the products of one filter and its window.
double flops(const TensorInfo& weight, const TensorInfo& y) {
  return 2.0 * static_cast<double>(num_elements(y.shape)) *
         static_cast<double>(num_elements(weight.shape) / weight.shape[0]);
}

Cost cost_with(Infos in, Infos out, double flops) {
  Cost cost = traffic_cost(in, out, 0);
  cost.flops = flops;
  return cost;
}

/// x [n, k, p, q], weight [k, c, r, s] -> y [n, c, h, w], where attr size is [h, w]: a convolution of y with the same
/// weight has the shape of x. With groups, x [n, (g k), p, q], weight [(g k), c, r, s] -> y [n, (g c), h, w].
RuleText conv_transpose2d_rule(Infos, const Attrs& attrs) {
  const bool last = is_channels_last(attrs), grouped = groups_of(attrs) > 1;
  const std::string k = grouped ? "(gk)" : "k", c = grouped ? "(gc)" : "c";
  RuleText rule = {image_letters(k, "pq", last) + "," + k + "crs->" + image_letters(c, "hw", last),
                   grouped ? "hwpqrskc" : "hwpqrs", grouped ? kWholeGroups : kWindowsNeedNeighbours};
  if (grouped) name_groups(rule, groups_of(attrs));
  return rule;
}

/// dy must have the shape that the window makes of x.
void expect_windows(std::string_view op, const Images& dy, const Images& x, const Window& window) {
  const Images y = window_output(op, x, window, dy.c);
  if (y.n != dy.n || y.size != dy.size) {
    shape_error(fmt::format("{}: dy has {} images of {}x{}, expected {} of {}x{}", op, dy.n, dy.size[0], dy.size[1],
                            y.n, y.size[0], y.size[1]));
  }
}

void conv2d_backward(GradBuilder& g) {
  const Images x = Images::of(g.shape(g.in(0)), is_channels_last(g.attrs()));
  const Shape w = g.shape(g.in(1));
  Attrs of_input = g.attrs(), of_weight = g.attrs();
  of_input.set("size", Ints{x.size[0], x.size[1]});
  of_weight.set("kernel", Ints{w[2], w[3]});
  g.set_in_grad(0, "conv2d_input_grad", {g.out_grad(), g.in(1)}, of_input);
  g.set_in_grad(1, "conv2d_weight_grad", {g.in(0), g.out_grad()}, of_weight);
}

/// The output of a transposed convolution; `x`: its input.
std::vector<TensorInfo> infer_conv_transpose2d(Infos in, const Attrs& attrs) {
  expect_inputs("conv_transpose2d", in, 2, 2);
  expect_floats("conv_transpose2d", in);
  const bool last = is_channels_last(attrs);
  const Images x = expect_images("conv_transpose2d", in[0], attrs);
  if (in[1].shape.size() != 4 || in[1].shape[0] != x.c) {
    shape_error(fmt::format("conv_transpose2d: {} needs a weight [{}, c, r, s], but got {}", to_string(in[0]), x.c,
                            to_string(in[1])));
  }
  const int64_t groups = groups_of(attrs);
  if (x.c % groups != 0)
    shape_error(
        fmt::format("conv_transpose2d: {} groups do not divide the {} channels of {}", groups, x.c, to_string(in[0])));
  const Ints size = attrs.ints("size");
  const Images y{x.n, in[1].shape[1] * groups, {size[0], size[1]}};
  expect_windows("conv_transpose2d", x, y, window_of(in[1], attrs));
  return {{y.shape(last), in[0].dtype}};
}

/// dx is the convolution of dy, and the weight's gradient is that of this convolution, with dy and x exchanged.
void conv_transpose2d_backward(GradBuilder& g) {
  const Shape w = g.shape(g.in(1));
  Attrs of_input = g.attrs();
  of_input.erase("size");
  Attrs of_weight = of_input;
  of_weight.set("kernel", Ints{w[2], w[3]});
  g.set_in_grad(0, "conv2d", {g.out_grad(), g.in(1)}, of_input);
  g.set_in_grad(1, "conv2d_weight_grad", {g.out_grad(), g.in(0)}, of_weight);
}

int64_t weight_scratch(const std::vector<Shape>& inputs, const std::vector<Shape>&) {
  return most_conv_scratch(inputs[1]);
}
int64_t weight_grad_scratch(const std::vector<Shape>&, const std::vector<Shape>& outputs) {
  return most_conv_scratch(outputs[0]);
}

// 32 images of 64 channels, 56 x 56, as in the first blocks of a ResNet.
const Shape kX = {32, 64, 56, 56}, kWeight = {64, 64, 3, 3};
const Attrs kSame = {{"padding", Ints{1, 1, 1, 1}}};
const Attrs kOptional = {
    {"stride", Ints{1, 1}}, {"dilation", Ints{1, 1}}, {"groups", int64_t{1}}, {"channels_last", true}};

Attrs with(Attrs attrs, std::string_view name, Value value) {
  attrs.set(name, std::move(value));
  return attrs;
}

}  // namespace

extern const OpDef conv2d_op = {
    .name = "conv2d",
    .infer = infer_conv2d,
    .rule = conv2d_rule,
    .backward = conv2d_backward,
    .kernel = {.name = "conv2d",
               .takes = bits(EpilogueStep::bias, EpilogueStep::activation),
               .channel_dim = channel_dim,
               .channels_last = images_of<1, 1>,
               .prefers_channels_last = true,
               .is_product = true,
               .cost = [](Infos in, Infos out, const Attrs&) { return cost_with(in, out, flops(in[1], out[0])); },
               .most_cuda_scratch = weight_scratch,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y of images x [n,c,h,w] and a weight [k,c,r,s] (+ bias[k])",
                                          .inputs = {{kX}, {kWeight}},
                                          .attrs = kSame,
                                          .optional = kOptional};
                   }},
};

/// (dy, weight) -> dx with the size of attr size [h, w]
extern const OpDef conv2d_input_grad_op = {
    .name = "conv2d_input_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("conv2d_input_grad", in, 2, 2);
      const bool last = is_channels_last(attrs);
      const Ints size = attrs.ints("size");
      const Images dy = expect_images("conv2d_input_grad", in[0], attrs);
      expect_ndim("conv2d_input_grad", in[1], 4);
      const Images dx{dy.n, in[1].shape[1] * groups_of(attrs), {size[0], size[1]}};
      expect_windows("conv2d_input_grad", dy, dx, window_of(in[1], attrs));
      return {{dx.shape(last), in[0].dtype}};
    },
    .kernel = {.name = "conv2d_input_grad",
               .channels_last = images_of<1, 1>,
               .prefers_channels_last = true,
               .is_product = true,
               .cost = [](Infos in, Infos out, const Attrs&) { return cost_with(in, out, flops(in[1], in[0])); },
               .most_cuda_scratch = weight_scratch,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dx; inputs dy [n,k,p,q], weight [k,c,r,s]",
                                          .inputs = {{kX}, {kWeight}},
                                          .attrs = with(kSame, "size", Ints{56, 56}),
                                          .optional = kOptional};
                   }},
};

/// (x, dy) -> dweight, f32, with a window of attr kernel [r, s]; with attr bias_grad also db [k], dy summed over all
/// other dims.
extern const OpDef conv2d_weight_grad_op = {
    .name = "conv2d_weight_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("conv2d_weight_grad", in, 2, 2);
      const Ints kernel = attrs.ints("kernel");
      const Images x = expect_images("conv2d_weight_grad", in[0], attrs),
                   dy = expect_images("conv2d_weight_grad", in[1], attrs);
      expect_windows("conv2d_weight_grad", dy, x, Window::of(attrs));
      const TensorInfo dw{{dy.c, x.c / groups_of(attrs), kernel[0], kernel[1]}};
      if (epilogue_of(attrs).bias_grad) return {dw, {{dy.c}}};
      return {dw};
    },
    .kernel = {.name = "conv2d_weight_grad",
               .accumulates = 3,
               .takes = bits(EpilogueStep::bias_grad),
               .channel_dim = channel_dim,
               .channels_last = images_of<3, 0>,
               .prefers_channels_last = true,
               .is_product = true,
               .cost = [](Infos in, Infos out, const Attrs&) { return cost_with(in, out, flops(out[0], in[1])); },
               .most_cuda_scratch = weight_grad_scratch,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dweight; inputs x [n,c,h,w], dy [n,k,p,q]",
                                          .inputs = {{kX}, {kX}},
                                          .attrs = with(kSame, "kernel", Ints{3, 3}),
                                          .optional = kOptional};
                   }},
};

/// The kernel of conv2d_input_grad as a forward op.
extern const OpDef conv_transpose2d_op = {
    .name = "conv_transpose2d",
    .infer = [](Infos in, const Attrs& attrs) { return infer_conv_transpose2d(in, attrs); },
    .rule = conv_transpose2d_rule,
    .backward = conv_transpose2d_backward,
    .kernel = {.name = "conv_transpose2d",
               .channels_last = images_of<1, 1>,
               .prefers_channels_last = true,
               .is_product = true,
               .cost = [](Infos in, Infos out, const Attrs&) { return cost_with(in, out, flops(in[1], in[0])); },
               .most_cuda_scratch = weight_scratch,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y; inputs x [n,k,p,q], weight [k,c,r,s]",
                                          .inputs = {{kX}, {kWeight}},
                                          .attrs = with(kSame, "size", Ints{56, 56}),
                                          .optional = kOptional};
                   }},
};

extern const LayerDef conv2d_layer, conv1d_layer, conv_transpose2d_layer, conv_transpose1d_layer;

extern const OpFamily conv2d_family = {
    .ops = {&conv2d_op, &conv2d_input_grad_op, &conv2d_weight_grad_op, &conv_transpose2d_op},
    .layers = {&conv2d_layer, &conv1d_layer, &conv_transpose2d_layer, &conv_transpose1d_layer},
    .profile_part = "convolutions"};

}  // namespace trainctl
