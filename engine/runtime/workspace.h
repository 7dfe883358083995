// GPU memory that a rank uses in addition to the program's arena, derived from the program: the executor allocates
// these sizes, and `trainctl plan` shows them.
//
//   staging   [ slot 0: inputs | StepScalars ][ slot 1: … ]    one slot per step in flight
//   counter   steps that the device has done
//   scratch   memory that a kernel needs only while it runs (CudaScratch), then the f32 copies of its f16 operands
#pragma once

#include <cstdint>

#include "engine/compile/program.h"
#include "engine/runtime/input_layout.h"

namespace trainctl {

/// Scratch memory of one instruction.
struct ScratchUse {
  int64_t kernel = 0;  ///< the most that its kernel requests
  int64_t copies = 0;  ///< f32 copies of its f16 operands, which begin after that (runtime/cuda/f16_operands.h)
};
ScratchUse scratch_of(const Instruction& instruction);
/// Bytes of the f32 copy of an f16 operand.
int64_t float_copy_bytes(int64_t elements);

struct Workspace {
  int slots = 0;
  int64_t stride = 0;   ///< bytes of a slot
  int64_t scalars = 0;  ///< offset in a slot
  int64_t counter = 0;
  int64_t scratch = 0;

  int64_t staging() const { return stride * slots; }
  int64_t bytes() const { return staging() + counter + scratch; }
};

/// For steps that transfer all their data, with `in_flight` of them wanted at a time.
Workspace workspace_of(const Program& program, int in_flight);
/// For steps that transfer what `inputs` says, since the device keeps data of the set. Never more than workspace_of().
Workspace workspace_with(const InputLayout& inputs, const Program& program, int in_flight);

}  // namespace trainctl
