// The kernel that rounds factors of products to 8 bits; for the pass that emits it (compile/fuse/narrow_products.cpp).
#pragma once

#include <vector>

#include "engine/ops/kernel_def.h"

namespace trainctl {

/// in: x; out: words and scales of its rows (attr rows), then of its columns (attr columns); attr squares: a scale for
/// each square of 128 by 128 numbers; attr tensor: one scale, from a second input. Fused: see quantise.cpp.
extern const KernelDef quantise_kernel;

/// Its outputs.
std::vector<TensorInfo> quantised(Infos in, const Attrs& attrs, DType dtype = DType::f32);

}  // namespace trainctl
