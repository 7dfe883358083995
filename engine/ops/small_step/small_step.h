// The one switch of the kernels for small steps (docs/small_step.md): TRAINCTL_SMALL_STEP=off in a rank's environment
// leaves them out, and every product is the library's, every instruction a launch of its own. `trainctl run` hands its
// environment to the ranks, so all of them choose alike.
#pragma once

namespace trainctl {

/// Asked when a program is loaded.
bool small_step_kernels();

}  // namespace trainctl
