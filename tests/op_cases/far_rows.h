// Rows of softmax and of its loss with numbers as far from 0 as their type has them: masks of attention are the lowest
// finite number or -infinity, and a row may be masked throughout.
#pragma once

#include "engine/graph/dtype.h"
#include "tests/op_cases/case_device.h"

namespace trainctl {

/// Forward, gradient and loss of rows of n, against loops in double that subtract the largest first.
void check_far_rows(const CaseDevice& device, DType type, int64_t n);
/// The same numbers down the columns of a tensor.
void check_far_columns(const CaseDevice& device, DType type, int64_t n);

}  // namespace trainctl
