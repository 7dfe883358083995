// What a tape of a program's steps records, and where.
#pragma once

#include "engine/compile/program.h"
#include "engine/runtime/step_tape.h"

namespace trainctl {

/// Ranges, exchanges, offsets and sizes; the memory is left to the device.
StepTape lay_out_tape(const Program& program);

}  // namespace trainctl
