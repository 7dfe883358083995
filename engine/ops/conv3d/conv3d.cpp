// A convolution of volumes [n, c, d, h, w] as convolutions of images: each slice of the output's depth is the
// convolution of a slice of the input, whose depth, that of the kernel, is merged with the channels, [n, (c kd), h, w].
// All slices share the factors of the first one, so that they share its weight. The merged channels of a group are
// adjacent, [(g c kd)], so groups are those of the convolution of images. With a dilation of the depth, the slices of a
// window are cut out one by one and concatenated.
#include <fmt/format.h>

#include <array>

#include "engine/ops/conv2d/conv_groups.h"
#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

using Three = std::array<int64_t, 3>;

Three three_of(const Attrs& attrs, const char* field) {
  const Ints given = attrs.ints(field);
  if (given.size() == 3) return {given[0], given[1], given[2]};
  return {given.at(0), given.at(0), given.at(0)};
}

std::vector<FieldFault> conv3d_faults(const Attrs& attrs) {
  std::vector<FieldFault> faults;
  for (const char* field : {"kernel", "stride", "padding", "dilation"}) {
    const size_t given = attrs.ints(field).size();
    if (attrs.has(field) && given != 1 && given != 3)
      faults.push_back({field,
                        fmt::format("{} numbers; expected one, or one for each of depth, height and width", given),
                        "e.g. [3, 3, 3]"});
  }
  return faults;
}

/// The windows of a volume along its depth.
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

/// The volume with zeros around its depth.
TensorId pad_depth(LayerBuilder& b, TensorId volume, int64_t padding) {
  if (padding == 0) return volume;
  const Ints around = {0, 0, padding, 0, 0};
  return b.emit("pad", {volume}, {{"before", around}, {"after", around}, {"value", 0.0}}, "padded")[0];
}

void expect_volume(const Shape& x, const Three& kernel, const Three& padding, const Three& dilation) {
  if (x.size() != 5)
    shape_error(fmt::format("conv3d needs an input [n, c, depth, height, width], but got {}", to_string(x)));
  for (size_t d = 0; d < 3; ++d)
    if (const int64_t reach = dilation[d] * (kernel[d] - 1) + 1; x[2 + d] + 2 * padding[d] < reach)
      shape_error(fmt::format("the window of {} is larger than dim {} of the input {} with a padding of {}", reach,
                              2 + d, to_string(x), padding[d]));
}

TensorId emit_conv3d(LayerContext& layer) {
  const Attrs& fields = layer.attrs;
  const Shape x = layer.shape();
  const Three kernel = three_of(fields, "kernel"), stride = three_of(fields, "stride"),
              padding = three_of(fields, "padding"), dilation = three_of(fields, "dilation");
  expect_volume(x, kernel, padding, dilation);
  const int64_t channels = fields.integer("channels"), groups = fields.integer("groups");
  expect_groups(groups, x[1], channels);
  DepthWindows windows{0, kernel[0], stride[0], kernel[0] == 1 ? 1 : dilation[0]};
  windows.count = (x[2] + 2 * padding[0] - windows.reach()) / stride[0] + 1;
  if (windows.count > kMaxLayerOutputs || windows.kernel > kMaxLayerOutputs)
    shape_error(
        fmt::format("conv3d supports outputs and windows of a depth of up to {}, but of the input {} they are {} "
                    "and {}; use a stride, or swap the depth with a shorter dim",
                    kMaxLayerOutputs, to_string(x), windows.count, windows.kernel));
  LayerBuilder& b = layer.builder;
  // With the depth merged into the channels, as the slices are: the same elements in the same order.
  const Shape shape = {channels, x[1] / groups * kernel[0], kernel[1], kernel[2]};
  const Init init = linear_init(num_elements(shape) / channels);
  const TensorId w = layer.weight(shape, init), padded = pad_depth(b, layer.inputs[0], padding[0]);
  Attrs window{{"stride", Ints{stride[1], stride[2]}},
               {"dilation", Ints{dilation[1], dilation[2]}},
               {"padding", Ints{padding[1], padding[1], padding[2], padding[2]}},
               {"groups", groups}};
  if (groups > 1) window.set("whole_channels", true);
  FirstWindow first_window;
  TensorId first = -1;
  std::vector<TensorId> made;
  for (int64_t t = 0; t < windows.count; ++t) {
    const std::string number = std::to_string(t);
    const TensorId part = depth_window(b, padded, windows, t, first_window);
    const Shape images = {x[0], x[1] * kernel[0], x[3], x[4]};
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

Field of_three(const char* name, const char* doc) {
  return per_dim(name, std::string(doc) + ": one number, or [depth, height, width].");
}

}  // namespace

extern const LayerDef conv3d_layer = {
    .name = "conv3d",
    .doc =
        "Convolution of volumes [n, c, depth, height, width], with a weight of [channels, c / groups * kernel, kernel, "
        "kernel]: that of PyTorch with the first two dims of its windows merged.",
    .fields = {integer("channels", "Number of output channels.").required().at_least(1).at_most(kMaxSize),
               of_three("kernel", "Size of the window").required().at_least(1).at_most(kMaxSize),
               of_three("stride", "Distance between windows").defaults(Ints{1}).at_least(1).at_most(kMaxSize),
               of_three("padding", "Zeros on each side").defaults(Ints{0}).at_least(0).at_most(kMaxSize),
               of_three("dilation", "Distance between the elements of a window")
                   .defaults(Ints{1})
                   .at_least(1)
                   .at_most(kMaxSize),
               groups_field(), flag("bias", true, "Add a bias."), share_field(), init_field(), bias_init_field()},
    .faults = conv3d_faults,
    .emit = emit_conv3d,
};

extern const OpFamily conv3d_family = {.ops = {}, .layers = {&conv3d_layer}};

}  // namespace trainctl
