// Pools to images of a given size: row i of `size` rows is the mean or the largest of rows floor(i h / size) to
// ceil((i + 1) h / size) - 1, as PyTorch's AdaptiveAvgPool2d and AdaptiveMaxPool2d. With equal windows it is a pool;
// else the rows, and then the columns, are slices that are reduced and joined.
#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/window_layer.h"

namespace trainctl {
namespace {

/// Reduces dim `dim` of images to `size` windows.
TensorId reduced(LayerBuilder& b, TensorId x, size_t dim, int64_t size, bool mean, const std::string& name) {
  const Shape shape = b.shape(x);
  const int64_t all = shape[dim];
  if (size == all) return x;
  const std::string side = dim == 2 ? "row" : "column";
  std::vector<TensorId> windows;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t begin = i * all / size, end = ((i + 1) * all + size - 1) / size;
    const std::string number = side + std::to_string(i);
    TensorId part = x;
    if (end - begin < all) {
      Ints begins(4), sizes = shape;
      begins[dim] = begin;
      sizes[dim] = end - begin;
      part = b.emit("slice", {x}, {{"begin", begins}, {"size", sizes}}, number + ".slice")[0];
    }
    Attrs attrs{{"dims", Ints{static_cast<int64_t>(dim)}}, {"keep_dims", true}};
    if (mean) attrs.set("scale", 1.0 / static_cast<double>(end - begin));
    windows.push_back(b.emit(mean ? "reduce_sum" : "reduce_max", {part}, attrs, number)[0]);
  }
  if (size == 1) return windows[0];
  return b.emit("concat", windows, {{"dim", static_cast<int64_t>(dim)}}, name)[0];
}

TensorId emit_adaptive(LayerContext& layer, bool mean) {
  expect_images(layer);
  const std::array<int64_t, 2> size = per_side(layer.attrs, "size");
  const Shape x = layer.shape();
  for (size_t d = 0; d < 2; ++d)
    if (size[d] > x[2 + d])
      throw ShapeError(fmt::format("{} has an output of {}x{}, but its input has images of {}x{}", layer.def.name,
                                   size[0], size[1], x[2], x[3]),
                       "size");
  if (x[2] == size[0] && x[3] == size[1])
    throw ShapeError(fmt::format("the images are {}x{} already; remove the layer", x[2], x[3]), "size");
  if (x[2] % size[0] == 0 && x[3] % size[1] == 0) {
    const Ints kernel = {x[2] / size[0], x[3] / size[1]};
    return layer.emit(mean ? "avg_pool2d" : "max_pool2d",
                      {{"kernel", kernel}, {"stride", kernel}, {"padding", Ints(4, 0)}, {"ceil_mode", false}});
  }
  LayerBuilder& b = layer.builder;
  const TensorId rows = reduced(b, layer.inputs[0], 2, size[0], mean, "rows");
  const TensorId both = reduced(b, rows, 3, size[1], mean, "columns");
  return b.emit("reshape", {both}, {{"shape", b.shape(both)}})[0];
}

Field size_field() {
  return per_dim("size", "Height and width of the output.").required().at_least(1).at_most(kMaxSize);
}

}  // namespace

extern const LayerDef adaptive_avg_pool2d_layer = {
    .name = "adaptive_avg_pool2d",
    .doc = "Average pooling of images [n, c, h, w] to a given height and width.",
    .fields = {size_field()},
    .emit = [](LayerContext& layer) { return emit_adaptive(layer, true); },
};

extern const LayerDef adaptive_max_pool2d_layer = {
    .name = "adaptive_max_pool2d",
    .doc = "Max pooling of images [n, c, h, w] to a given height and width.",
    .fields = {size_field()},
    .emit = [](LayerContext& layer) { return emit_adaptive(layer, false); },
};

extern const OpFamily adaptive_pool_family = {.ops = {},
                                              .layers = {&adaptive_avg_pool2d_layer, &adaptive_max_pool2d_layer}};

}  // namespace trainctl
