// Which layers' weights can be tables of parameter servers: integers of the layer's only input choose rows of its only
// weight.
#pragma once

#include <string_view>

#include "engine/ops/layer_def.h"

namespace trainctl {

/// The field of such a layer that counts the rows; empty for all other layers.
std::string_view table_rows_field(const LayerDef& layer);

}  // namespace trainctl
