// What a rank takes of its GPU's memory beside the program's arena, from the program alone: the executor allocates by
// these numbers, and `trainctl plan` shows them.
//
//   staging   [ slot 0: inputs | StepScalars ][ slot 1: … ]    a slot a step in flight
//   counter   how far the device is
//   scratch   what a kernel holds only while it runs (CudaScratch)
#pragma once

#include <cstdint>

#include "engine/compile/program.h"
#include "engine/runtime/input_layout.h"

namespace trainctl {

struct Workspace {
  int slots = 0;
  int64_t stride = 0;   ///< bytes of a slot
  int64_t scalars = 0;  ///< offset in a slot
  int64_t counter = 0;
  int64_t scratch = 0;

  int64_t staging() const { return stride * slots; }
  int64_t bytes() const { return staging() + counter + scratch; }
};

/// Where each step brings all its data, and so many are wanted in flight.
Workspace workspace_of(const Program& program, int in_flight);
/// Where steps bring what `inputs` says, since the device keeps data of the set. Never more than the other.
Workspace workspace_with(const InputLayout& inputs, const Program& program, int in_flight);

}  // namespace trainctl
