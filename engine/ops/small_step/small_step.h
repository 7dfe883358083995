// The switch of the kernels for small steps (docs/small_step.md). With TRAINCTL_SMALL_STEP=off in a rank's environment
// none of them is used: cuBLASLt computes every product, and every instruction has its own launch. `trainctl run`
// passes its environment to the ranks, so all of them choose alike.
#pragma once

namespace trainctl {

/// Whether the switch is on. Read when a program is loaded.
bool small_step_kernels();

}  // namespace trainctl
