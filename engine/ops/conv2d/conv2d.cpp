// y[n, k, p, q] = sum over c, r, s of x[n, c, p * stride + r * dilation - padding, ..] * w[k, c, r, s], as in PyTorch.
// With attr groups the channels are cut into groups, each with its own weights: x [n, (g c), h, w], w [(g k), c, r, s].
// With attr channels_last (images.h) x and y are [n, h, w, c]; w stays as it is. Cutting c leaves y partial over c's
// axes. A bias is an op of its own (add_bias) in the dim of the channels, since a partial sum has none.
// conv_transpose2d is the gradient of x as a forward op: x [n, k, p, q], w [k, c, r, s] -> y [n, c, h, w].
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/conv2d/conv_ways.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/op_family.h"
#include "engine/ops/reindex/pad_beyond.h"
#include "engine/ops/window_layer.h"

namespace trainctl {
namespace {

constexpr const char* kWholeGroups =
    "a window reads neighbouring rows and columns, which would be on another rank; with groups, only whole groups of "
    "channels can be cut";

int64_t groups_of(const Attrs& attrs) { return attrs.integer("groups", 1); }

Window window_of(const TensorInfo& weight, const Attrs& attrs) {
  Window window = Window::of(attrs);
  window.kernel = {weight.shape[2], weight.shape[3]};
  return window;
}

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

/// A grouped convolution that is not the first node of its layer: the channels of its input are one factor there, which
/// cannot be cut into groups.
RuleText whole_channels_rule(const Attrs& attrs) {
  const bool last = is_channels_last(attrs);
  return {image_letters("c", "hw", last) + ",kdrs->" + image_letters("k", "pq", last), "hwpqrskcd",
          "a window reads neighbouring rows and columns, which would be on another rank; channels with groups can be "
          "cut only by a conv2d with padding_mode: zeros"};
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
  if (grouped) {
    conv2d_rule.sizes = {{'g', groups_of(attrs)}};
    conv2d_rule.why_size = fmt::format("only whole groups can be cut, and their number is {}", groups_of(attrs));
  }
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
/// weight has the shape of x.
RuleText conv_transpose2d_rule(Infos, const Attrs& attrs) {
  const bool last = is_channels_last(attrs);
  return {image_letters("k", "pq", last) + ",kcrs->" + image_letters("c", "hw", last), "hwpqrs",
          kWindowsNeedNeighbours};
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

/// Field padding, where `same` keeps height and width. As in PyTorch, an odd padding has one more at the end.
Ints conv_padding(const LayerContext& layer, const Window& window) {
  if (const Value* value = layer.attrs.find("padding"); !std::holds_alternative<std::string>(*value))
    return padding_of(layer.attrs);
  if (window.stride != std::array<int64_t, 2>{1, 1}) {
    throw ShapeError(fmt::format("padding: same keeps the size of the images, which is not possible with a stride of "
                                 "{}x{}",
                                 window.stride[0], window.stride[1]),
                     "padding");
  }
  Ints padding;
  for (size_t d = 0; d < 2; ++d) {
    const int64_t both = window.reach(d) - 1;
    padding.insert(padding.end(), {both / 2, both - both / 2});
  }
  return padding;
}

void expect_groups(int64_t groups, int64_t inputs, int64_t outputs) {
  if (inputs % groups == 0 && outputs % groups == 0) return;
  throw ShapeError(
      fmt::format("{} groups must divide the {} input channels and the {} output channels", groups, inputs, outputs),
      "groups");
}

Field groups_field() {
  return integer("groups",
                 "Number of channel groups that are convolved separately; equal to the number of channels for a "
                 "depthwise convolution.")
      .defaults(int64_t{1})
      .at_least(1)
      .at_most(kMaxSize);
}

TensorId emit_conv2d(LayerContext& layer) {
  expect_images(layer);
  const Attrs& fields = layer.attrs;
  const Images x = Images::of(layer.shape(), false);
  Window window{.kernel = per_side(fields, "kernel"),
                .stride = per_side(fields, "stride"),
                .dilation = per_side(fields, "dilation")};
  Attrs attrs{{"stride", Ints(window.stride.begin(), window.stride.end())},
              {"dilation", Ints(window.dilation.begin(), window.dilation.end())},
              {"padding", conv_padding(layer, window)},
              {"groups", fields.integer("groups")}};
  const std::array<int64_t, 2> kernel = window.kernel;
  window = Window::of(attrs);
  window.kernel = kernel;
  expect_window_fits(window, x);
  const int64_t groups = fields.integer("groups"), channels = fields.integer("channels");
  expect_groups(groups, x.c, channels);

  LayerBuilder& b = layer.builder;
  const Shape shape{channels, x.c / groups, kernel[0], kernel[1]};
  const Init init = linear_init(num_elements(shape) / channels);
  const bool bias = fields.flag("bias");
  const TensorId w = layer.weight(shape, init);
  const TensorId images = pad_images(b, layer.inputs[0], fields.text("padding_mode"), attrs);
  if (groups > 1 && images != layer.inputs[0]) attrs.set("whole_channels", true);
  const TensorId product = b.emit("conv2d", {images, w}, attrs, bias ? "conv2d" : "")[0];
  if (!bias) return product;
  return b.emit("add_bias", {product, layer.bias({channels}, init)}, {{"dim", int64_t{1}}})[0];
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
  const Ints size = attrs.ints("size");
  const Images y{x.n, in[1].shape[1], {size[0], size[1]}};
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

TensorId emit_conv_transpose2d(LayerContext& layer) {
  expect_images(layer);
  const Attrs& fields = layer.attrs;
  const Images x = Images::of(layer.shape(), false);
  const auto kernel = per_side(fields, "kernel"), stride = per_side(fields, "stride"),
             dilation = per_side(fields, "dilation"), padding = per_side(fields, "padding"),
             more = per_side(fields, "output_padding");
  Ints size(2);
  for (size_t d = 0; d < 2; ++d) {
    if (more[d] >= std::max(stride[d], dilation[d]))
      throw ShapeError(fmt::format("output_padding {} must be smaller than the stride or the dilation", more[d]),
                       "output_padding");
    size[d] = (x.size[d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (kernel[d] - 1) + more[d] + 1;
    if (size[d] < 1)
      throw ShapeError(
          fmt::format("a padding of {} leaves nothing of images of {}x{}", padding[d], x.size[0], x.size[1]),
          "padding");
  }
  const Attrs attrs{{"stride", Ints{stride[0], stride[1]}},
                    {"dilation", Ints{dilation[0], dilation[1]}},
                    {"padding", Ints{padding[0], padding[0], padding[1], padding[1]}},
                    {"size", size}};
  LayerBuilder& b = layer.builder;
  const int64_t channels = fields.integer("channels");
  const Init init = linear_init(channels * kernel[0] * kernel[1]);
  const bool bias = fields.flag("bias");
  const TensorId w = layer.weight({x.c, channels, kernel[0], kernel[1]}, init);
  const TensorId product = b.emit("conv_transpose2d", {layer.inputs[0], w}, attrs, bias ? "conv_transpose2d" : "")[0];
  if (!bias) return product;
  return b.emit("add_bias", {product, layer.bias({channels}, init)}, {{"dim", int64_t{1}}})[0];
}

TensorId emit_conv1d(LayerContext& layer) {
  const Shape in = layer.shape();
  if (in.size() != 3) shape_error(fmt::format("conv1d needs an input [n, c, length], but got {}", to_string(in)));
  const Attrs& fields = layer.attrs;
  const int64_t kernel = fields.integer("kernel"), padding = fields.integer("padding"),
                channels = fields.integer("channels"), groups = fields.integer("groups");
  expect_groups(groups, in[1], channels);
  Attrs attrs{{"stride", Ints{1, fields.integer("stride")}},
              {"dilation", Ints{1, fields.integer("dilation")}},
              {"padding", Ints{0, 0, padding, padding}},
              {"groups", groups}};
  Window window = Window::of(attrs);
  window.kernel = {1, kernel};
  expect_window_fits(window, Images{in[0], in[1], {1, in[2]}});
  LayerBuilder& b = layer.builder;
  const Init init = linear_init(in[1] / groups * kernel);
  const TensorId w = layer.weight({channels, in[1] / groups, 1, kernel}, init);
  TensorId images = b.emit("reshape", {layer.inputs[0]}, {{"shape", Shape{in[0], in[1], 1, in[2]}}}, "images")[0];
  images = pad_images(b, images, fields.text("padding_mode"), attrs);
  if (groups > 1) attrs.set("whole_channels", true);
  TensorId y = b.emit("conv2d", {images, w}, attrs, "conv2d")[0];
  if (fields.flag("bias"))
    y = b.emit("add_bias", {y, layer.bias({channels}, init)}, {{"dim", int64_t{1}}}, "biased")[0];
  const Shape out = b.shape(y);
  return b.emit("reshape", {y}, {{"shape", Shape{out[0], out[1], out[3]}}})[0];
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

/// (dy, weight) -> dx, of attr size [h, w]
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

extern const LayerDef conv2d_layer = {
    .name = "conv2d",
    .doc = "Convolution of images [n, c, h, w], with a weight of [channels, c / groups, kernel, kernel].",
    .fields = {integer("channels", "Number of output channels.").required().at_least(1).at_most(kMaxSize),
               kernel_field(), stride_field("Distance between windows.").defaults(Ints{1}),
               padding_field(
                   "Zeros around the image: one number, [height, width] or [top, bottom, left, right]; same: as "
                   "many as preserve the image size.",
                   {"same"}),
               padding_mode_field(),
               per_dim("dilation", "Distance between the pixels of a window.")
                   .defaults(Ints{1})
                   .at_least(1)
                   .at_most(kMaxSize),
               groups_field(), flag("bias", true, "Add a bias."), share_field(), init_field(), bias_init_field()},
    .emit = emit_conv2d,
};

/// A convolution of images of height 1.
extern const LayerDef conv1d_layer = {
    .name = "conv1d",
    .doc = "Convolution along the last dim of [n, c, length], with a weight of [channels, c / groups, 1, kernel].",
    .fields = {integer("channels", "Number of output channels.").required().at_least(1).at_most(kMaxSize),
               integer("kernel", "Length of the window.").required().at_least(1).at_most(kMaxSize),
               integer("stride", "Distance between windows.").defaults(int64_t{1}).at_least(1).at_most(kMaxSize),
               integer("padding", "Zeros at both ends.").defaults(int64_t{0}).at_least(0).at_most(kMaxSize),
               padding_mode_field(),
               integer("dilation", "Distance between the elements of a window.")
                   .defaults(int64_t{1})
                   .at_least(1)
                   .at_most(kMaxSize),
               groups_field(), flag("bias", true, "Add a bias."), share_field(), init_field(), bias_init_field()},
    .emit = emit_conv1d,
};

extern const LayerDef conv_transpose2d_layer = {
    .name = "conv_transpose2d",
    .doc = "Transposed convolution of images [n, c, h, w], with a weight of [c, channels, kernel, kernel].",
    .fields = {integer("channels", "Number of output channels.").required().at_least(1).at_most(kMaxSize),
               kernel_field(), stride_field("Distance between windows of the output.").defaults(Ints{1}),
               per_dim("padding", "Pixels removed from each side of the output.")
                   .defaults(Ints{0})
                   .at_least(0)
                   .at_most(kMaxSize),
               per_dim("output_padding", "Pixels added to the output at the bottom and on the right.")
                   .defaults(Ints{0})
                   .at_least(0)
                   .at_most(kMaxSize),
               per_dim("dilation", "Distance between the pixels of a window.")
                   .defaults(Ints{1})
                   .at_least(1)
                   .at_most(kMaxSize),
               flag("bias", true, "Add a bias."), share_field(), init_field(), bias_init_field()},
    .emit = emit_conv_transpose2d,
};

extern const OpFamily conv2d_family = {
    .ops = {&conv2d_op, &conv2d_input_grad_op, &conv2d_weight_grad_op, &conv_transpose2d_op},
    .layers = {&conv2d_layer, &conv1d_layer, &conv_transpose2d_layer},
    .profile_part = "convolutions"};

}  // namespace trainctl
