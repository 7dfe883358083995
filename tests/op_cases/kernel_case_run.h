// Runs a KernelCase on a device, or as the naive loop.
#pragma once

#include "tests/op_cases/case_device.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {

using Results = std::vector<std::vector<double>>;

/// The outputs after this number of runs on the same memory. `wide`: bf16 operands are passed as f32.
Results run_kernel_case(const CaseDevice& device, const KernelCase& row, bool wide, int times);
/// The same from the family's KernelReference. Fails if there is none.
Results run_naive(const KernelCase& row, int times);

/// The largest difference, relative to the expected element, or to 1 if that is larger. A NaN is infinitely wrong.
double worst_part(const std::vector<double>& got, const std::vector<double>& expected);

}  // namespace trainctl
