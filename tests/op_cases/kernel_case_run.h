// Runs a KernelCase on a device, or as the naive loop.
#pragma once

#include "tests/op_cases/case_device.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {

using Results = std::vector<std::vector<double>>;

/// The outputs after so many runs on the same memory. `wide`: bf16 operands go there as f32.
Results run_kernel_case(const CaseDevice& device, const KernelCase& row, bool wide, int times);
/// The same by the family's KernelReference. Fails where there is none.
Results run_naive(const KernelCase& row, int times);

/// The largest difference, as a part of the expected element or of 1 where that is less. NaNs are infinitely wrong.
double worst_part(const std::vector<double>& got, const std::vector<double>& expected);

}  // namespace trainctl
