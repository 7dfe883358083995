// The elements of a dim moved in a circle: the last `shift` of them, then the others.
#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const LayerDef roll_layer = {
    .name = "roll",
    .doc = "Moves the elements of a dim by `shift` places; those that leave at the end come back at the start.",
    .fields = {integer("shift", "Number of places; negative: towards the start.").required(),
               integer("dim", "The dim, other than the batch dim; -1 is the last.").required()},
    .emit =
        [](LayerContext& layer) {
          const int64_t dim = layer.sample_dim(layer.attrs.integer("dim"));
          const Shape in = layer.shape();
          const int64_t size = in[static_cast<size_t>(dim)];
          const int64_t shift = (layer.attrs.integer("shift") % size + size) % size;
          if (shift == 0)
            shape_error("this roll moves nothing, because the shift is a multiple of the size of the dim; remove it");
          LayerBuilder& b = layer.builder;
          std::vector<TensorId> parts;
          for (const bool is_last : {true, false}) {
            Ints begin(in.size()), sizes = in;
            begin[static_cast<size_t>(dim)] = is_last ? size - shift : 0;
            sizes[static_cast<size_t>(dim)] = is_last ? shift : size - shift;
            parts.push_back(
                b.emit("slice", {layer.inputs[0]}, {{"begin", begin}, {"size", sizes}}, is_last ? "last" : "first")[0]);
          }
          return b.emit("concat", parts, {{"dim", dim}})[0];
        },
};

extern const OpFamily roll_family = {.ops = {}, .layers = {&roll_layer}};

}  // namespace trainctl
