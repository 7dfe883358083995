// The ops that other folders request by name: the sum of a tensor's gradients, the product with which `trainctl bench`
// measures a device's peak, and the change of an image's format. All others come from the layers of a job.
#pragma once

#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef add_op, matmul_op, transpose_op;

}  // namespace trainctl
