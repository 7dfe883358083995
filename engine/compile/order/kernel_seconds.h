// Estimates how long the kernels of a program take, as exactly as passes need to know.
#pragma once

#include "engine/compile/compiler.h"

namespace trainctl {

/// Predicted time of a kernel that runs alone; 0 for other instructions and for kernels that do nothing.
Seconds kernel_seconds(const Machine& machine, const Instruction& code);

}  // namespace trainctl
