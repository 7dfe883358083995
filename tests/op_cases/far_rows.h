// Checks softmax and its loss on rows with the numbers farthest from 0 that their type has. Such numbers occur in
// attention masks, which are the lowest finite number or -infinity; a row may be completely masked.
#pragma once

#include "engine/graph/dtype.h"
#include "tests/op_cases/case_device.h"

namespace trainctl {

/// Checks the forward pass, the gradient and the loss of rows of n numbers against loops in double that first subtract
/// the maximum.
void check_far_rows(const CaseDevice& device, DType type, int64_t n);
/// The same numbers along the columns of a tensor.
void check_far_columns(const CaseDevice& device, DType type, int64_t n);

}  // namespace trainctl
