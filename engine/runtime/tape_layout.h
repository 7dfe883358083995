// The layout of a tape: which values of a program's steps it records, and at which bytes.
#pragma once

#include "engine/compile/program.h"
#include "engine/runtime/step_tape.h"

namespace trainctl {

/// Ranges, exchanges, offsets and sizes; the memory is left to the device.
StepTape lay_out_tape(const Program& program);

}  // namespace trainctl
