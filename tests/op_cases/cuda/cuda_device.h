// The GPU as a device of the op cases.
#pragma once

#include "tests/op_cases/case_device.h"

namespace trainctl {

/// Whether this machine has a GPU. If not, the test case is skipped and should return.
bool gpu_is_here();

/// Operands begin so many bytes past a 256-byte border, where that is whole elements: ranges of buckets begin at any
/// element.
const CaseDevice& cuda_device(int misaligned_by = 0);

}  // namespace trainctl
