// Lets the op cases run on the GPU.
#pragma once

#include "tests/op_cases/case_device.h"

namespace trainctl {

/// Returns whether this machine has a GPU. If not, prints that to the test's output.
bool gpu_is_here();

/// The operands begin `misaligned_by` bytes past a 256-byte boundary, if that is a whole number of elements. In jobs
/// the ranges of buckets may begin at any element.
const CaseDevice& cuda_device(int misaligned_by = 0);

}  // namespace trainctl
