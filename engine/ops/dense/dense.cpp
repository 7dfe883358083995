// The layer y = x w^T + b, built from the ops matmul and add_bias. Weight [units, features], as in PyTorch.
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const LayerDef dense_layer = {
    .name = "dense",
    .doc = "Fully connected layer: x w^T + b, with a weight of [units, features].",
    .fields = {units_field().required(), flag("bias", true, "Add a bias."), share_field(), init_field(),
               bias_init_field()},
    .emit =
        [](LayerContext& layer) {
          LayerBuilder& b = layer.builder;
          const int64_t features = layer.shape().back(), units = layer.attrs.integer("units");
          const bool bias = layer.attrs.flag("bias");
          const TensorId x = layer.inputs[0], w = layer.packed_weight({units, features}, linear_init(features));
          const TensorId product = b.emit("matmul", {x, w}, {{"transpose_b", true}}, bias ? "matmul" : "")[0];
          if (!bias) return product;
          const TensorId shift = layer.bias({units}, linear_init(features));
          return b.emit("add_bias", {product, shift})[0];
        },
};

extern const OpFamily dense_family = {.ops = {}, .layers = {&dense_layer}};

}  // namespace trainctl
