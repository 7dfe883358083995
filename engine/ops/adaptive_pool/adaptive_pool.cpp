// Pools to a given size: row i of `size` rows is the mean or the largest of rows floor(i h / size) to
// ceil((i + 1) h / size) - 1, as PyTorch's AdaptiveAvgPool2d and AdaptiveMaxPool2d. With equal windows of images it is
// a pool; else the depth, the rows, and then the columns, are slices that are reduced and joined. Windows repeat: with
// the greatest common divisor g of h and size, window i + size / g is window i, h / g rows further. So the h rows
// become [g, h / g], of which size / g slices are reduced.
#include <fmt/format.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

/// Reduces dim `dim` to `size` windows, which are called `name`0, `name`1, …. Windows of one length share their
/// factors.
TensorId reduced_part(LayerBuilder& b, TensorId x, size_t dim, int64_t size, bool mean, const std::string& name) {
  const Shape shape = b.shape(x);
  const int64_t all = shape[dim];
  std::vector<TensorId> windows;
  std::map<int64_t, TensorId> of_length;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t begin = i * all / size, end = ((i + 1) * all + size - 1) / size;
    const std::string number = name + std::to_string(i);
    TensorId part = x;
    if (end - begin < all) {
      Ints begins(shape.size()), sizes = shape;
      begins[dim] = begin;
      sizes[dim] = end - begin;
      const auto like = of_length.find(end - begin);
      part = b.emit("slice", {x}, {{"begin", begins}, {"size", sizes}}, number + ".slice",
                    like == of_length.end() ? -1 : like->second)[0];
      of_length.emplace(end - begin, part);
    }
    Attrs attrs{{"dims", Ints{static_cast<int64_t>(dim)}}, {"keep_dims", true}};
    if (mean) attrs.set("scale", 1.0 / static_cast<double>(end - begin));
    windows.push_back(
        b.emit(mean ? "reduce_sum" : "reduce_max", {part}, attrs, number, windows.empty() ? -1 : windows[0])[0]);
  }
  if (size == 1) return windows[0];
  return b.emit("concat", windows, {{"dim", static_cast<int64_t>(dim)}}, name + "s")[0];
}

/// The field size: one number, or one for each of the dims after the channels.
Ints size_of(const LayerContext& layer, size_t dims) {
  const Shape& x = layer.shape();
  static constexpr const char* kInputs[] = {"[n, c, length]", "[n, c, height, width]", "[n, c, depth, height, width]"};
  if (x.size() != dims + 2)
    shape_error(fmt::format("{} needs an input {}, but got {}", layer.def.name, kInputs[dims - 1], to_string(x)));
  Ints size = layer.attrs.ints("size");
  if (size.size() == 1) size.resize(dims, size[0]);
  if (size.size() != dims)
    throw ShapeError(fmt::format("{} numbers; expected one, or one for each of {} dims", size.size(), dims), "size");
  return size;
}

/// Emits a pool if all windows of images are equal, else the reduction of each dim in turn (see the top of the file).
TensorId emit_adaptive(LayerContext& layer, size_t dims, bool mean) {
  static constexpr const char* kSides[] = {"depth", "row", "column"};
  const Ints size = size_of(layer, dims);
  const Shape x = layer.shape();
  bool equal = dims == 2;
  for (size_t d = 0; d < dims; ++d) equal = equal && x[2 + d] % size[d] == 0;
  for (size_t d = 0; d < dims && !equal; ++d)
    if (const int64_t windows = size[d] / std::gcd(size[d], x[2 + d]);
        size[d] != x[2 + d] && windows > kMaxLayerOutputs)
      throw ShapeError(fmt::format("{} supports up to {} different windows of a dim, but {} of {} elements make {}; a "
                                   "size that has a common divisor with the dim makes fewer",
                                   layer.def.name, kMaxLayerOutputs, size[d], x[2 + d], windows),
                       "size");
  if (equal) {
    const Ints kernel = {x[2] / size[0], x[3] / size[1]};
    return layer.emit(mean ? "avg_pool2d" : "max_pool2d",
                      {{"kernel", kernel}, {"stride", kernel}, {"padding", Ints(4, 0)}, {"ceil_mode", false}});
  }
  LayerBuilder& b = layer.builder;
  TensorId y = layer.inputs[0];
  // Dims are split before any node reads them, because all nodes of a layer use the same factors of a dim.
  Shape split = {x[0], x[1]}, out = split;
  std::vector<size_t> reduced_dim;
  for (size_t d = 0; d < dims; ++d) {
    const int64_t all = x[2 + d], repeats = size[d] == all ? 1 : std::gcd(size[d], all);
    if (repeats > 1) split.push_back(repeats);
    split.push_back(all / repeats);
    reduced_dim.push_back(split.size() - 1);
    out.push_back(size[d]);
  }
  if (split != x) y = b.emit("reshape", {y}, {{"shape", split}}, "repeats")[0];
  for (size_t d = 0; d < dims; ++d)
    if (size[d] != x[2 + d])
      y = reduced_part(b, y, reduced_dim[d], size[d] / std::gcd(size[d], x[2 + d]), mean, kSides[d + 3 - dims]);
  return b.emit("reshape", {y}, {{"shape", out}})[0];
}

Field size_field() {
  return per_dim("size", "Output sizes of the dims after the channels: a single number, or one number per dim.")
      .required()
      .at_least(1)
      .at_most(kMaxSize);
}

LayerDef adaptive(const char* name, const char* doc, size_t dims, bool mean) {
  return {.name = name, .doc = doc, .fields = {size_field()}, .emit = [dims, mean](LayerContext& layer) {
            return emit_adaptive(layer, dims, mean);
          }};
}

}  // namespace

extern const LayerDef adaptive_avg_pool1d_layer =
    adaptive("adaptive_avg_pool1d", "Average pooling of [n, c, length] to a given length.", 1, true);
extern const LayerDef adaptive_max_pool1d_layer =
    adaptive("adaptive_max_pool1d", "Max pooling of [n, c, length] to a given length.", 1, false);
extern const LayerDef adaptive_avg_pool2d_layer =
    adaptive("adaptive_avg_pool2d", "Average pooling of images [n, c, h, w] to a given height and width.", 2, true);
extern const LayerDef adaptive_max_pool2d_layer =
    adaptive("adaptive_max_pool2d", "Max pooling of images [n, c, h, w] to a given height and width.", 2, false);
extern const LayerDef adaptive_avg_pool3d_layer = adaptive(
    "adaptive_avg_pool3d", "Average pooling of volumes [n, c, depth, height, width] to a given size.", 3, true);
extern const LayerDef adaptive_max_pool3d_layer =
    adaptive("adaptive_max_pool3d", "Max pooling of volumes [n, c, depth, height, width] to a given size.", 3, false);

extern const OpFamily adaptive_pool_family = {
    .ops = {},
    .layers = {&adaptive_avg_pool2d_layer, &adaptive_max_pool2d_layer, &adaptive_avg_pool1d_layer,
               &adaptive_max_pool1d_layer, &adaptive_avg_pool3d_layer, &adaptive_max_pool3d_layer}};

}  // namespace trainctl
