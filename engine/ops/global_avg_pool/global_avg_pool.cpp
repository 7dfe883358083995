// The mean of each channel over all its pixels, built from reduce_sum: PyTorch's AdaptiveAvgPool2d(1), followed by its
// flatten unless keep_dims.
#include <fmt/format.h>

#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const LayerDef global_avg_pool_layer = {
    .name = "global_avg_pool",
    .doc = "Mean of each channel over all pixels: [n, c, h, w] to [n, c].",
    .fields = {flag("keep_dims", false, "Keep height and width with size 1, so that the output is [n, c, 1, 1].")},
    .emit =
        [](LayerContext& layer) {
          const Shape& in = layer.shape();
          if (in.size() < 3)
            shape_error(
                fmt::format("global_avg_pool needs an input [n, c, ..] of at least 3 dims, but got {}", to_string(in)));
          Ints dims;
          for (int64_t d = 2; d < static_cast<int64_t>(in.size()); ++d) dims.push_back(d);
          const int64_t pixels = num_elements(Shape(in.begin() + 2, in.end()));
          return layer.emit("reduce_sum", {{"dims", dims},
                                           {"keep_dims", layer.attrs.flag("keep_dims")},
                                           {"scale", 1.0 / static_cast<double>(pixels)}});
        },
};

extern const OpFamily global_avg_pool_family = {.ops = {}, .layers = {&global_avg_pool_layer}};

}  // namespace trainctl
