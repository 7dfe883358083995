// A transposed convolution of volumes [n, c, d, h, w] as one of images, and a sum over its steps in depth:
//
//   x [n, c, d, h, w] -> [n, c, (d h), w]
//   z [n, k, kd, d, h', w'] = conv_transpose2d with the weight [c, (k kd), kh, kw]
//   y[.., d * stride + t * dilation - padding, ..] = sum of z[.., t, d, ..]
//
// Rows of zeros below each slice of x keep the windows of a slice apart. `stride` adjacent steps t of a slice fill
// `stride` adjacent slices of y, so the sum has kd / stride terms; with a dilation it has kd.
#include <algorithm>
#include <map>

#include "engine/ops/conv2d/conv_groups.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/three_dims.h"
#include "engine/ops/window_layer.h"

namespace trainctl {
namespace {

struct Transposed {
  int64_t channels, groups;
  Three kernel, stride, padding, dilation, out;

  int64_t reach(size_t d) const { return dilation[d] * (kernel[d] - 1) + 1; }
};

/// Reads the fields and computes the size of the output.
Transposed transposed_of(const LayerContext& layer) {
  expect_volume(layer);
  const Attrs& fields = layer.attrs;
  const Shape x = layer.shape();
  Transposed t{.channels = fields.integer("channels"),
               .groups = fields.integer("groups"),
               .kernel = three_of(fields, "kernel"),
               .stride = three_of(fields, "stride"),
               .padding = three_of(fields, "padding"),
               .dilation = three_of(fields, "dilation"),
               .out = {}};
  expect_groups(t.groups, x[1], t.channels);
  const Three more = three_of(fields, "output_padding");
  for (size_t d = 0; d < 3; ++d) {
    expect_output_padding(more[d], t.stride[d], t.dilation[d]);
    t.out[d] = (x[2 + d] - 1) * t.stride[d] - 2 * t.padding[d] + t.reach(d) + more[d];
    if (t.out[d] < 1)
      throw ShapeError(fmt::format("a padding of {} leaves nothing of dim {} of {}", t.padding[d], 2 + d, to_string(x)),
                       "padding");
  }
  return t;
}

/// Builds the nodes of the layer, each from the tensor of the one before.
class Steps {
 public:
  Steps(LayerBuilder& builder, TensorId first) : b_(builder), at_(first) {}

  TensorId at() const { return at_; }
  const Shape& shape() const { return b_.shape(at_); }
  void emit(const char* op, Attrs attrs, const std::string& name, TensorId like = -1) {
    at_ = b_.emit(op, {at_}, std::move(attrs), name, like)[0];
  }
  void reshape(Shape shape, const std::string& name) {
    if (shape != this->shape()) emit("reshape", {{"shape", std::move(shape)}}, name);
  }
  /// Elements begin to begin + size - 1 of a dim, with zeros beyond its ends.
  void window(size_t dim, int64_t begin, int64_t size, const std::string& name, TensorId like = -1) {
    const int64_t all = shape()[dim], end = begin + size, from = std::max<int64_t>(begin, 0), to = std::min(end, all);
    if (from > 0 || to < all) {
      Ints begins(shape().size());
      begins[dim] = from;
      Ints sizes = shape();
      sizes[dim] = to - from;
      emit("slice", {{"begin", begins}, {"size", sizes}}, name + ".slice", from == begin && to == end ? like : -1);
    }
    if (from == begin && to == end) return;
    Ints before(shape().size()), after(shape().size());
    before[dim] = from - begin;
    after[dim] = end - to;
    emit("pad", {{"before", before}, {"after", after}, {"value", 0.0}}, name, like);
  }

 private:
  LayerBuilder& b_;
  TensorId at_;
};

/// z [n, groups, channels / groups, kd, d, h', w'].
TensorId emit_images(LayerContext& layer, const Transposed& t, TensorId weight) {
  LayerBuilder& b = layer.builder;
  const Shape x = layer.shape();
  const int64_t depth = x[2], of_group = t.channels / t.groups, in_group = x[1] / t.groups;
  Steps images(b, layer.inputs[0]);
  // Rows of a slice, so that its windows end before the rows of the next slice.
  const int64_t rows = std::max((x[3] - 1) * t.stride[1] + t.reach(1), t.padding[1] + t.out[1]);
  const int64_t height = (rows + t.stride[1] - 1) / t.stride[1], tall = height * t.stride[1];
  if (t.groups > 1) images.reshape({x[0], t.groups, in_group, depth, x[3], x[4]}, "groups");
  images.window(images.shape().size() - 2, 0, height, "rows");
  const int64_t zeros = zeros_of_output_padding(three_of(layer.attrs, "output_padding")[2], t.stride[2]);
  images.window(images.shape().size() - 1, 0, x[4] + zeros, "columns");
  images.reshape({x[0], x[1], depth * height, x[4] + zeros}, "images");

  b.share_factors(weight, 0, images.at(), 1);
  b.split_factors(weight, 1, {of_group, t.kernel[0]});
  Attrs attrs{{"stride", Ints{t.stride[1], t.stride[2]}},
              {"dilation", Ints{t.dilation[1], t.dilation[2]}},
              {"padding", Ints{0, std::max<int64_t>(0, t.reach(1) - t.stride[1]), t.padding[2], t.padding[2]}},
              {"size", Ints{depth * tall, t.out[2]}}};
  if (t.groups > 1) attrs.set("groups", t.groups);
  Steps z(b, b.emit("conv_transpose2d", {images.at(), weight}, attrs, "conv")[0]);
  z.reshape({x[0], t.groups, of_group, t.kernel[0], depth, tall, t.out[2]}, "steps");
  z.window(5, t.padding[1], t.out[1], "heights");
  return z.at();
}

/// The sum over the steps in depth: [n, groups, channels / groups, d', h', w'].
TensorId emit_sum(LayerBuilder& b, const Transposed& t, TensorId z) {
  const Shape shape = b.shape(z);
  const int64_t adjacent = t.dilation[0] == 1 ? t.stride[0] : 1, terms = (t.kernel[0] + adjacent - 1) / adjacent,
                apart = adjacent * t.dilation[0], slices = shape[4] * t.stride[0];
  Steps by_depth(b, z);
  by_depth.emit("transpose", {{"perm", Ints{0, 1, 2, 4, 3, 5, 6}}}, "by_depth");
  TensorId total = -1, first_term = -1;
  std::map<int64_t, TensorId> parts;  // by their number of steps: parts of one size share their factors
  const auto part_like = [&](int64_t steps) { return parts.contains(steps) ? parts[steps] : -1; };
  for (int64_t k = 0; k < terms; ++k) {
    const std::string number = std::to_string(k);
    Steps term(b, by_depth.at());
    const int64_t steps = std::min(adjacent, t.kernel[0] - k * adjacent);
    term.window(4, k * adjacent, steps, "step" + number, part_like(steps));
    parts.emplace(steps, term.at());
    term.window(4, 0, t.stride[0], "spread" + number, part_like(t.stride[0]));
    parts.emplace(t.stride[0], term.at());
    term.reshape({shape[0], shape[1], shape[2], slices, shape[5], shape[6]}, "slices" + number);
    term.window(3, -k * apart, slices + (terms - 1) * apart, "term" + number, first_term);
    if (first_term < 0) first_term = term.at();
    total = total < 0 ? term.at() : b.emit("add", {total, term.at()}, {}, "sum" + number)[0];
  }
  Steps sum(b, total);
  if (t.padding[0] >= b.shape(total)[3])
    throw ShapeError(fmt::format("a padding of {} leaves nothing but output_padding of the depth", t.padding[0]),
                     "padding");
  sum.window(3, t.padding[0], t.out[0], "depth");
  return sum.at();
}

TensorId emit_conv_transpose3d(LayerContext& layer) {
  const Transposed t = transposed_of(layer);
  LayerBuilder& b = layer.builder;
  const int64_t of_group = t.channels / t.groups;
  const Shape shape = {layer.shape()[1], of_group * t.kernel[0], t.kernel[1], t.kernel[2]};
  const Init init = linear_init(num_elements(shape) / shape[0]);
  const TensorId sum = emit_sum(b, t, emit_images(layer, t, layer.weight(shape, init)));
  const bool bias = layer.attrs.flag("bias");
  const Shape volume = {layer.shape()[0], t.channels, t.out[0], t.out[1], t.out[2]};
  const TensorId y = b.emit("reshape", {sum}, {{"shape", volume}}, bias ? "volume" : "")[0];
  if (!bias) return y;
  return b.emit("add_bias", {y, layer.bias({t.channels}, init)}, {{"dim", int64_t{1}}})[0];
}

}  // namespace

extern const LayerDef conv_transpose3d_layer = {
    .name = "conv_transpose3d",
    .doc =
        "Transposed convolution of volumes [n, c, depth, height, width], with a weight of [c, channels / groups * "
        "kernel, kernel, kernel]: PyTorch's weight with its dims 1 and 2 merged.",
    .fields =
        {integer("channels", "Number of output channels.").required().at_least(1).at_most(kMaxSize),
         of_three("kernel", "Size of the window").required().at_least(1).at_most(kMaxSize),
         of_three("stride", "Distance between windows of the output").defaults(Ints{1}).at_least(1).at_most(kMaxSize),
         of_three("padding", "Elements removed from each side of the output")
             .defaults(Ints{0})
             .at_least(0)
             .at_most(kMaxSize),
         of_three("output_padding", "Elements added at the end of each dim of the output")
             .defaults(Ints{0})
             .at_least(0)
             .at_most(kMaxSize),
         of_three("dilation", "Distance between the elements of a window")
             .defaults(Ints{1})
             .at_least(1)
             .at_most(kMaxSize),
         groups_field(), flag("bias", true, "Add a bias."), share_field(), init_field(), bias_init_field()},
    .faults =
        [](const Attrs& attrs) {
          return faults_of_three(attrs, {"kernel", "stride", "padding", "output_padding", "dilation"});
        },
    .emit = emit_conv_transpose3d,
};

}  // namespace trainctl
