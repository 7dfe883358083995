// The layers conv2d and conv_transpose2d, and conv1d and conv_transpose1d on images of height 1.
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/conv2d/conv_groups.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/reindex/pad_beyond.h"
#include "engine/ops/window_layer.h"

namespace trainctl {
namespace {

bool is_same(const LayerContext& layer) { return std::holds_alternative<std::string>(*layer.attrs.find("padding")); }

/// The padding that keeps height and width. As in PyTorch, an odd padding has one more at the end.
Ints same_padding(const Window& window) {
  if (window.stride != std::array<int64_t, 2>{1, 1})
    throw ShapeError("padding: same keeps the size of the input, which is not possible with a stride", "padding");
  Ints padding;
  for (size_t d = 0; d < 2; ++d) {
    const int64_t both = window.reach(d) - 1;
    padding.insert(padding.end(), {both / 2, both - both / 2});
  }
  return padding;
}

/// The field of conv1d as [0, 0, start, end].
Ints padding_of_rows(const LayerContext& layer, const Window& window) {
  if (is_same(layer)) return same_padding(window);
  const Ints given = layer.attrs.ints("padding");
  if (given.empty() || given.size() > 2)
    throw ShapeError(fmt::format("padding must be one number or [start, end], but it has {} numbers", given.size()),
                     "padding");
  return {0, 0, given.at(0), given.back()};
}

/// Emits a convolution of images: the padding by a mode, the convolution, and the bias.
TensorId emit_conv2d(LayerContext& layer) {
  expect_images(layer);
  const Attrs& fields = layer.attrs;
  const Images x = Images::of(layer.shape(), false);
  Window window{.kernel = per_side(fields, "kernel"),
                .stride = per_side(fields, "stride"),
                .dilation = per_side(fields, "dilation")};
  Attrs attrs{{"stride", Ints(window.stride.begin(), window.stride.end())},
              {"dilation", Ints(window.dilation.begin(), window.dilation.end())},
              {"padding", is_same(layer) ? same_padding(window) : padding_of(fields)},
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

using Two = std::array<int64_t, 2>;

/// The attrs of the op conv_transpose2d for images of size x.
Attrs transposed_window(const Window& window, Two x, Two padding, Two output_padding) {
  Ints size(2);
  for (size_t d = 0; d < 2; ++d) {
    expect_output_padding(output_padding[d], window.stride[d], window.dilation[d]);
    size[d] = (x[d] - 1) * window.stride[d] - 2 * padding[d] + window.reach(d) + output_padding[d];
    if (size[d] < 1)
      throw ShapeError(fmt::format("a padding of {} leaves nothing of an input of size {}", padding[d], x[d]),
                       "padding");
  }
  return {{"stride", Ints{window.stride[0], window.stride[1]}},
          {"dilation", Ints{window.dilation[0], window.dilation[1]}},
          {"padding", Ints{padding[0], padding[0], padding[1], padding[1]}},
          {"size", size}};
}

/// The images with the zeros that an output_padding beyond the stride is made of (zeros_of_output_padding).
TensorId with_zeros(LayerBuilder& b, TensorId images, const Window& window, Two output_padding) {
  Ints after(4);
  for (size_t d = 0; d < 2; ++d) after[2 + d] = zeros_of_output_padding(output_padding[d], window.stride[d]);
  if (after == Ints(4)) return images;
  return b.emit("pad", {images}, {{"before", Ints(4)}, {"after", after}, {"value", 0.0}}, "padded")[0];
}

/// Emits a transposed convolution of images, and the bias.
TensorId emit_conv_transpose2d(LayerContext& layer) {
  expect_images(layer);
  const Attrs& fields = layer.attrs;
  const Images x = Images::of(layer.shape(), false);
  const auto kernel = per_side(fields, "kernel"), stride = per_side(fields, "stride"),
             dilation = per_side(fields, "dilation"), padding = per_side(fields, "padding"),
             more = per_side(fields, "output_padding");
  const Window window{.kernel = kernel, .stride = stride, .dilation = dilation};
  Attrs attrs = transposed_window(window, x.size, padding, more);
  LayerBuilder& b = layer.builder;
  const int64_t channels = fields.integer("channels"), groups = fields.integer("groups");
  expect_groups(groups, x.c, channels);
  if (groups > 1) attrs.set("groups", groups);
  const int64_t of_group = channels / groups;
  const Init init = linear_init(of_group * kernel[0] * kernel[1]);
  const bool bias = fields.flag("bias");
  const TensorId w = layer.weight({x.c, of_group, kernel[0], kernel[1]}, init);
  const TensorId padded = with_zeros(b, layer.inputs[0], window, more);
  const TensorId product = b.emit("conv_transpose2d", {padded, w}, attrs, bias ? "conv_transpose2d" : "")[0];
  if (!bias) return product;
  return b.emit("add_bias", {product, layer.bias({channels}, init)}, {{"dim", int64_t{1}}})[0];
}

/// Adds the bias to images of height 1, and makes rows [n, c, length] of them.
TensorId emit_rows(LayerContext& layer, TensorId images, const Init& init) {
  LayerBuilder& b = layer.builder;
  const Shape shape = b.shape(images);
  if (layer.attrs.flag("bias"))
    images = b.emit("add_bias", {images, layer.bias({shape[1]}, init)}, {{"dim", int64_t{1}}}, "biased")[0];
  return b.emit("reshape", {images}, {{"shape", Shape{shape[0], shape[1], shape[3]}}})[0];
}

/// Emits a transposed convolution of rows as one of images of height 1.
TensorId emit_conv_transpose1d(LayerContext& layer) {
  const Shape in = layer.shape();
  if (in.size() != 3)
    shape_error(fmt::format("conv_transpose1d needs an input [n, c, length], but got {}", to_string(in)));
  const Attrs& fields = layer.attrs;
  const int64_t kernel = fields.integer("kernel"), channels = fields.integer("channels"),
                groups = fields.integer("groups");
  expect_groups(groups, in[1], channels);
  const Window window{
      .kernel = {1, kernel}, .stride = {1, fields.integer("stride")}, .dilation = {1, fields.integer("dilation")}};
  const Two more = {0, fields.integer("output_padding")};
  Attrs attrs = transposed_window(window, {1, in[2]}, {0, fields.integer("padding")}, more);
  LayerBuilder& b = layer.builder;
  const Init init = linear_init(channels / groups * kernel);
  const TensorId w = layer.weight({in[1], channels / groups, 1, kernel}, init);
  TensorId x = layer.inputs[0];
  if (groups > 1) {  // the groups become a dim of their own, so that they can be sharded
    attrs.set("groups", groups);
    x = b.emit("reshape", {x}, {{"shape", Shape{in[0], groups, in[1] / groups, 1, in[2]}}}, "groups")[0];
  }
  x = b.emit("reshape", {x}, {{"shape", Shape{in[0], in[1], 1, in[2]}}}, "images")[0];
  x = with_zeros(b, x, window, more);
  return emit_rows(layer, b.emit("conv_transpose2d", {x, w}, attrs, "conv_transpose2d")[0], init);
}

/// Emits a convolution of rows as one of images of height 1.
TensorId emit_conv1d(LayerContext& layer) {
  const Shape in = layer.shape();
  if (in.size() != 3) shape_error(fmt::format("conv1d needs an input [n, c, length], but got {}", to_string(in)));
  const Attrs& fields = layer.attrs;
  const int64_t kernel = fields.integer("kernel"), channels = fields.integer("channels"),
                groups = fields.integer("groups");
  expect_groups(groups, in[1], channels);
  Attrs attrs{{"stride", Ints{1, fields.integer("stride")}},
              {"dilation", Ints{1, fields.integer("dilation")}},
              {"groups", groups}};
  Window window = Window::of(attrs);
  window.kernel = {1, kernel};
  const Ints padding = padding_of_rows(layer, window);
  attrs.set("padding", padding);
  window.before[1] = padding[2];
  window.after[1] = padding[3];
  expect_window_fits(window, 1, in[2], "rows", "their");
  LayerBuilder& b = layer.builder;
  const Init init = linear_init(in[1] / groups * kernel);
  const TensorId w = layer.weight({channels, in[1] / groups, 1, kernel}, init);
  TensorId images = b.emit("reshape", {layer.inputs[0]}, {{"shape", Shape{in[0], in[1], 1, in[2]}}}, "images")[0];
  images = pad_images(b, images, fields.text("padding_mode"), attrs);
  if (groups > 1) attrs.set("whole_channels", true);
  return emit_rows(layer, b.emit("conv2d", {images, w}, attrs, "conv2d")[0], init);
}

}  // namespace

extern const LayerDef conv2d_layer = {
    .name = "conv2d",
    .doc = "Convolution of images [n, c, h, w], with a weight of [channels, c / groups, kernel, kernel].",
    .fields = {integer("channels", "Number of output channels.").required().at_least(1).at_most(kMaxSize),
               kernel_field(), stride_field("Distance between windows.").defaults(Ints{1}),
               padding_field("Padding around the image: one number, [height, width] or [top, bottom, left, right]; "
                             "same: padding that preserves the image size.",
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
               padding_field("Padding at both ends: one number, or [start, end], e.g. [2, 0] for a causal convolution; "
                             "same: padding that preserves the length.",
                             {"same"}),
               padding_mode_field(),
               integer("dilation", "Distance between the elements of a window.")
                   .defaults(int64_t{1})
                   .at_least(1)
                   .at_most(kMaxSize),
               groups_field(), flag("bias", true, "Add a bias."), share_field(), init_field(), bias_init_field()},
    .emit = emit_conv1d,
};

extern const LayerDef conv_transpose1d_layer = {
    .name = "conv_transpose1d",
    .doc =
        "Transposed convolution along the last dim of [n, c, length], with a weight of [c, channels / groups, 1, "
        "kernel].",
    .fields = {integer("channels", "Number of output channels.").required().at_least(1).at_most(kMaxSize),
               integer("kernel", "Length of the window.").required().at_least(1).at_most(kMaxSize),
               integer("stride", "Distance between windows of the output.")
                   .defaults(int64_t{1})
                   .at_least(1)
                   .at_most(kMaxSize),
               integer("padding", "Elements removed from both ends of the output.")
                   .defaults(int64_t{0})
                   .at_least(0)
                   .at_most(kMaxSize),
               integer("output_padding", "Elements added at the end of the output.")
                   .defaults(int64_t{0})
                   .at_least(0)
                   .at_most(kMaxSize),
               integer("dilation", "Distance between the elements of a window.")
                   .defaults(int64_t{1})
                   .at_least(1)
                   .at_most(kMaxSize),
               groups_field(), flag("bias", true, "Add a bias."), share_field(), init_field(), bias_init_field()},
    .emit = emit_conv_transpose1d,
};

extern const LayerDef conv_transpose2d_layer = {
    .name = "conv_transpose2d",
    .doc = "Transposed convolution of images [n, c, h, w], with a weight of [c, channels / groups, kernel, kernel].",
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
               groups_field(), flag("bias", true, "Add a bias."), share_field(), init_field(), bias_init_field()},
    .emit = emit_conv_transpose2d,
};

}  // namespace trainctl
