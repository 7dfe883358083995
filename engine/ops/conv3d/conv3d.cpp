// A convolution of volumes [n, c, d, h, w] as convolutions of images: each slice of the output's depth is the
// convolution of a slice of the input, whose depth, that of the kernel, is merged with the channels, [n, (c kd), h, w].
// All slices share the factors of the first one, so that they share its weight.
#include <fmt/format.h>

#include <array>

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
  for (const char* field : {"kernel", "stride", "padding"}) {
    const size_t given = attrs.ints(field).size();
    if (attrs.has(field) && given != 1 && given != 3)
      faults.push_back({field,
                        fmt::format("{} numbers; expected one, or one for each of depth, height and width", given),
                        "e.g. [3, 3, 3]"});
  }
  return faults;
}

TensorId emit_conv3d(LayerContext& layer) {
  const Shape x = layer.shape();
  if (x.size() != 5)
    shape_error(fmt::format("conv3d needs an input [n, c, depth, height, width], but got {}", to_string(x)));
  const Three kernel = three_of(layer.attrs, "kernel"), stride = three_of(layer.attrs, "stride"),
              padding = three_of(layer.attrs, "padding");
  for (size_t d = 0; d < 3; ++d)
    if (x[2 + d] + 2 * padding[d] < kernel[d])
      shape_error(fmt::format("the window of {} is larger than dim {} of the input {} with a padding of {}", kernel[d],
                              2 + d, to_string(x), padding[d]));
  const int64_t channels = layer.attrs.integer("channels"), depth = x[2] + 2 * padding[0];
  const int64_t slices = (depth - kernel[0]) / stride[0] + 1;
  LayerBuilder& b = layer.builder;
  // With the depth merged into the channels, as the slices are: the same elements in the same order.
  const Shape shape = {channels, x[1] * kernel[0], kernel[1], kernel[2]};
  const Init init = linear_init(num_elements(shape) / channels);
  const TensorId w = layer.weight(shape, init);
  TensorId padded = layer.inputs[0];
  if (padding[0] > 0) {
    const Ints around = {0, 0, padding[0], 0, 0};
    padded = b.emit("pad", {padded}, {{"before", around}, {"after", around}, {"value", 0.0}}, "padded")[0];
  }
  const Attrs window{{"stride", Ints{stride[1], stride[2]}},
                     {"dilation", Ints{1, 1}},
                     {"padding", Ints{padding[1], padding[1], padding[2], padding[2]}},
                     {"groups", int64_t{1}}};
  TensorId first_part = -1, first = -1;
  std::vector<TensorId> made;
  for (int64_t t = 0; t < slices; ++t) {
    const std::string number = std::to_string(t);
    TensorId part = padded;
    if (depth != kernel[0])
      part = b.emit("slice", {padded},
                    {{"begin", Ints{0, 0, t * stride[0], 0, 0}}, {"size", Ints{x[0], x[1], kernel[0], x[3], x[4]}}},
                    "part" + number, first_part)[0];
    const Shape images = {x[0], x[1] * kernel[0], x[3], x[4]};
    const TensorId merged = b.emit("reshape", {part}, {{"shape", images}}, "images" + number)[0];
    const TensorId y = b.emit("conv2d", {merged, w}, window, "conv" + number, first)[0];
    if (t == 0) {
      first_part = part;
      first = y;
    }
    Shape of_slice = b.shape(y);
    of_slice.insert(of_slice.begin() + 2, 1);
    made.push_back(b.emit("reshape", {y}, {{"shape", of_slice}}, "slice" + number)[0]);
  }
  const bool bias = layer.attrs.flag("bias");
  TensorId y = made[0];
  if (slices > 1) y = b.emit("concat", made, {{"dim", int64_t{2}}}, bias ? "volume" : "")[0];
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
        "Convolution of volumes [n, c, depth, height, width], with a weight of [channels, c * kernel, kernel, kernel]: "
        "that of PyTorch with the first two dims of its windows merged.",
    .fields = {integer("channels", "Number of output channels.").required().at_least(1).at_most(kMaxSize),
               of_three("kernel", "Size of the window").required().at_least(1).at_most(kMaxSize),
               of_three("stride", "Distance between windows").defaults(Ints{1}).at_least(1).at_most(kMaxSize),
               of_three("padding", "Zeros on each side").defaults(Ints{0}).at_least(0).at_most(kMaxSize),
               flag("bias", true, "Add a bias."), share_field(), init_field(), bias_init_field()},
    .faults = conv3d_faults,
    .emit = emit_conv3d,
};

extern const OpFamily conv3d_family = {.ops = {}, .layers = {&conv3d_layer}};

}  // namespace trainctl
