// The ops that other folders request by name: the sum of a tensor's gradients, the product with which `trainctl bench`
// measures a device's peak, the change of an image's format, and pieces of rows. All others come from the layers of a
// job.
#pragma once

#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef add_op, concat_op, matmul_op, split_op, transpose_op;

}  // namespace trainctl
