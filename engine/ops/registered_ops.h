// Ops and layers that are registered while the program runs: those of plugins. They are found by name as those of
// all_ops.def are, but lists of everything that this program has (all_ops, all_kernels, all_families) leave them out.
#pragma once

#include <string_view>

#include "engine/ops/layer_def.h"
#include "engine/ops/op_def.h"

namespace trainctl {

/// The definition must stay valid, and no op, kernel or layer may have its name.
void register_op(const OpDef& op);
void register_layer(const LayerDef& layer);

}  // namespace trainctl
