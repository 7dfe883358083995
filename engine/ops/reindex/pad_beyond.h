// A dim continued beyond its ends with elements of its own: for the layers pad, conv1d, conv2d and roll.
#pragma once

#include <string>

#include "engine/base/field.h"
#include "engine/ops/layer_builder.h"

namespace trainctl {

struct Continuation {
  int64_t dim = 0, before = 0, after = 0;
  std::string mode;   ///< circular | reflect | replicate
  std::string field;  ///< the field of the layer that an error is about
};

/// The field padding_mode of convolutions.
Field padding_mode_field();
/// Images padded as the attr padding of a window says, unless `mode` is zeros; the window then has no padding itself.
TensorId pad_images(LayerBuilder& builder, TensorId images, const std::string& mode, Attrs& window);

/// Emits one node. Throws a ShapeError if the dim has too few elements.
TensorId emit_reindex(LayerBuilder& builder, TensorId x, const Continuation& wanted, const std::string& suffix);

}  // namespace trainctl
