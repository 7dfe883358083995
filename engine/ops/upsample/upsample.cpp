// Repeats each pixel: PyTorch's interpolate with mode nearest and an integer factor, built from reshape and concat.
#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/window_layer.h"

namespace trainctl {
namespace {

/// Repeats each element `factor` times along dim `dim`: concatenates copies along an inserted dim of size 1 after it,
/// and merges the two dims.
TensorId repeated(LayerBuilder& b, TensorId x, size_t dim, int64_t factor, std::string_view name) {
  const std::string side = dim == 2 ? "rows" : "columns";
  if (factor == 1) return x;
  Shape shape = b.shape(x);
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1, 1);
  const TensorId expanded = b.emit("reshape", {x}, {{"shape", shape}}, side + ".apart")[0];
  const std::vector<TensorId> copies(static_cast<size_t>(factor), expanded);
  const TensorId joined = b.emit("concat", copies, {{"dim", static_cast<int64_t>(dim) + 1}}, side + ".joined")[0];
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1);
  shape[dim] *= factor;
  return b.emit("reshape", {joined}, {{"shape", shape}}, name)[0];
}

TensorId emit_upsample(LayerContext& layer) {
  expect_images(layer);
  const std::array<int64_t, 2> factor = per_side(layer.attrs, "factor");
  if (factor[0] == 1 && factor[1] == 1) throw ShapeError("a factor of 1 changes nothing", "factor");
  LayerBuilder& b = layer.builder;
  const TensorId wide = repeated(b, layer.inputs[0], 3, factor[1], factor[0] == 1 ? "" : "columns");
  return repeated(b, wide, 2, factor[0], "");
}

}  // namespace

extern const LayerDef upsample_layer = {
    .name = "upsample",
    .doc = "Repeats each pixel of images [n, c, h, w] (nearest neighbor): [n, c, h * factor, w * factor].",
    .fields =
        {per_dim("factor", "Factor by which height and width are multiplied.").required().at_least(1).at_most(64)},
    .emit = emit_upsample,
};

extern const OpFamily upsample_family = {.ops = {}, .layers = {&upsample_layer}};

}  // namespace trainctl
