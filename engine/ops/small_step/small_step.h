// The switch of the kernels for small steps (docs/small_step.md), TRAINCTL_SMALL_STEP in a rank's environment: `on`,
// `off`, or one kind alone, `launches` or `products`, for measurements. `trainctl run` passes its environment to the
// ranks, so all of them make the same choice.
#pragma once

namespace trainctl {

/// True if instructions that compile() marked may share a launch; otherwise each has its own. Read when a program is
/// loaded.
bool small_step_launches();
/// True if products of few multiplications have kernels of their own; otherwise cuBLASLt computes every product. Read
/// when a program is loaded.
bool small_step_products();

}  // namespace trainctl
