// A convolution of volumes [n, c, d, h, w] as convolutions of images: each slice of the output's depth is the
// convolution of a slice of the input, whose depth, that of the kernel, is merged with the channels, [n, (c kd), h, w].
// All slices share the factors of the first one, so that they share its weight. The merged channels of a group are
// adjacent, [(g c kd)], so groups are those of the convolution of images. With a dilation of the depth, the slices of a
// window are cut out one by one and concatenated.
#include <fmt/format.h>

#include "engine/ops/conv2d/conv_groups.h"
#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/op_family.h"
#include "engine/ops/reindex/pad_beyond.h"
#include "engine/ops/three_dims.h"

namespace trainctl {
namespace {

/// The parameters of the windows of a volume along its depth.
struct DepthWindows {
  int64_t count, kernel, stride, dilation;

  int64_t reach() const { return dilation * (kernel - 1) + 1; }
};

/// Tensors whose factors those of later slices and windows share; -1: there are none yet.
struct FirstWindow {
  TensorId slice = -1, window = -1;
};

/// The slices of window t of a volume: [n, c, kernel, h, w].
TensorId depth_window(LayerBuilder& b, TensorId volume, const DepthWindows& windows, int64_t t, FirstWindow& first) {
  const Shape x = b.shape(volume);
  if (x[2] == windows.kernel) return volume;
  const std::string number = std::to_string(t);
  const auto part = [&](int64_t begin, int64_t size, const std::string& name, TensorId& like) {
    const Attrs attrs{{"begin", Ints{0, 0, begin, 0, 0}}, {"size", Ints{x[0], x[1], size, x[3], x[4]}}};
    const TensorId made = b.emit("slice", {volume}, attrs, name, like)[0];
    if (like < 0) like = made;
    return made;
  };
  const int64_t begin = t * windows.stride;
  if (windows.dilation == 1) return part(begin, windows.kernel, "part" + number, first.window);
  std::vector<TensorId> slices;
  for (int64_t i = 0; i < windows.kernel; ++i)
    slices.push_back(part(begin + i * windows.dilation, 1, "part" + number + "_" + std::to_string(i), first.slice));
  const TensorId window = b.emit("concat", slices, {{"dim", int64_t{2}}}, "part" + number, first.window)[0];
  if (first.window < 0) first.window = window;
  return window;
}

struct Padding {
  Three before{}, after{};
};

/// Field padding, where `same` keeps the size. As in PyTorch, an odd padding has one more at the end.
Padding padding_of(const Attrs& fields, const Three& kernel, const Three& stride, const Three& dilation) {
  if (!std::holds_alternative<std::string>(*fields.find("padding"))) {
    const Three both = three_of(fields, "padding");
    return {both, both};
  }
  if (stride != Three{1, 1, 1})
    throw ShapeError("padding: same keeps the size of the input, which is not possible with a stride", "padding");
  Padding padding;
  for (size_t d = 0; d < 3; ++d) {
    const int64_t both = dilation[d] * (kernel[d] - 1);
    padding.before[d] = both / 2;
    padding.after[d] = both - both / 2;
  }
  return padding;
}

/// The volume with zeros around its depth, or with a mode around all dims, which then have no padding.
TensorId padded_volume(LayerBuilder& b, TensorId volume, const std::string& mode, Padding& padding) {
  if (mode == "zeros") {
    if (padding.before[0] + padding.after[0] == 0) return volume;
    return b.emit("pad", {volume},
                  {{"before", Ints{0, 0, padding.before[0], 0, 0}},
                   {"after", Ints{0, 0, padding.after[0], 0, 0}},
                   {"value", 0.0}},
                  "padded")[0];
  }
  static constexpr const char* kSides[] = {"padded", "padded_rows", "padded_columns"};
  for (size_t d = 0; d < 3; ++d)
    if (const int64_t before = padding.before[d], after = padding.after[d]; before + after > 0)
      volume = emit_reindex(b, volume, {static_cast<int64_t>(2 + d), before, after, mode, "padding"}, kSides[d]);
  padding = {};
  return volume;
}

void expect_windows_fit(const Shape& x, const Three& kernel, const Padding& padding, const Three& dilation) {
  for (size_t d = 0; d < 3; ++d)
    if (const int64_t reach = dilation[d] * (kernel[d] - 1) + 1;
        x[2 + d] + padding.before[d] + padding.after[d] < reach)
      throw ShapeError(fmt::format("the window of {} is larger than dim {} of the input {} with a padding of {}", reach,
                                   2 + d, to_string(x), padding.before[d]),
                       "kernel");
}

/// A 3D convolution as 2D ones: each output slice is the convolution of the slices under its window, merged into
/// channels, with the weight merged in the same way.
TensorId emit_conv3d(LayerContext& layer) {
  expect_volume(layer);
  const Attrs& fields = layer.attrs;
  const Shape x = layer.shape();
  const Three kernel = three_of(fields, "kernel"), stride = three_of(fields, "stride"),
              dilation = three_of(fields, "dilation");
  Padding padding = padding_of(fields, kernel, stride, dilation);
  expect_windows_fit(x, kernel, padding, dilation);
  const int64_t channels = fields.integer("channels"), groups = fields.integer("groups");
  expect_groups(groups, x[1], channels);
  DepthWindows windows{0, kernel[0], stride[0], kernel[0] == 1 ? 1 : dilation[0]};
  windows.count = (x[2] + padding.before[0] + padding.after[0] - windows.reach()) / stride[0] + 1;
  if (windows.count > kMaxLayerOutputs || windows.kernel > kMaxLayerOutputs)
    shape_error(
        fmt::format("conv3d supports outputs and windows of a depth of up to {}, but of the input {} they are {} "
                    "and {}; use a stride, or swap the depth with a shorter dim",
                    kMaxLayerOutputs, to_string(x), windows.count, windows.kernel));
  LayerBuilder& b = layer.builder;
  // The depth of the weight is merged into the channels, like that of the slices: the elements keep their order.
  const Shape shape = {channels, x[1] / groups * kernel[0], kernel[1], kernel[2]};
  const Init init = linear_init(num_elements(shape) / channels);
  const TensorId w = layer.weight(shape, init),
                 padded = padded_volume(b, layer.inputs[0], fields.text("padding_mode"), padding);
  Attrs window{{"stride", Ints{stride[1], stride[2]}},
               {"dilation", Ints{dilation[1], dilation[2]}},
               {"padding", Ints{padding.before[1], padding.after[1], padding.before[2], padding.after[2]}},
               {"groups", groups}};
  if (groups > 1) window.set("whole_channels", true);
  FirstWindow first_window;
  TensorId first = -1;
  std::vector<TensorId> made;
  for (int64_t t = 0; t < windows.count; ++t) {
    const std::string number = std::to_string(t);
    const TensorId part = depth_window(b, padded, windows, t, first_window);
    const Shape volume = b.shape(part), images = {x[0], x[1] * kernel[0], volume[3], volume[4]};
    const TensorId merged = b.emit("reshape", {part}, {{"shape", images}}, "images" + number)[0];
    const TensorId y = b.emit("conv2d", {merged, w}, window, "conv" + number, first)[0];
    if (t == 0) first = y;
    Shape of_slice = b.shape(y);
    of_slice.insert(of_slice.begin() + 2, 1);
    made.push_back(b.emit("reshape", {y}, {{"shape", of_slice}}, "slice" + number)[0]);
  }
  const bool bias = fields.flag("bias");
  TensorId y = made[0];
  if (windows.count > 1) y = b.emit("concat", made, {{"dim", int64_t{2}}}, bias ? "volume" : "")[0];
  if (bias) y = b.emit("add_bias", {y, layer.bias({channels}, init)}, {{"dim", int64_t{1}}})[0];
  return y;
}

}  // namespace

extern const LayerDef conv3d_layer = {
    .name = "conv3d",
    .doc =
        "Convolution of volumes [n, c, depth, height, width], with a weight of [channels, c / groups * kernel, kernel, "
        "kernel]: PyTorch's weight with the first two dims of its windows merged.",
    .fields =
        {integer("channels", "Number of output channels.").required().at_least(1).at_most(kMaxSize),
         of_three("kernel", "Size of the window").required().at_least(1).at_most(kMaxSize),
         of_three("stride", "Distance between windows").defaults(Ints{1}).at_least(1).at_most(kMaxSize),
         per_dim("padding",
                 "Padding on each side: one number, or [depth, height, width]; same: padding that preserves the size.",
                 {"same"})
             .defaults(Ints{0})
             .at_least(0)
             .at_most(kMaxSize),
         padding_mode_field(),
         of_three("dilation", "Distance between the elements of a window")
             .defaults(Ints{1})
             .at_least(1)
             .at_most(kMaxSize),
         groups_field(), flag("bias", true, "Add a bias."), share_field(), init_field(), bias_init_field()},
    .faults =
        [](const Attrs& attrs) {
          return faults_of_three(attrs, {"kernel", "stride", "padding", "dilation"});
        },
    .emit = emit_conv3d,
};

extern const LayerDef conv_transpose3d_layer;

extern const OpFamily conv3d_family = {.ops = {}, .layers = {&conv3d_layer, &conv_transpose3d_layer}};

}  // namespace trainctl
