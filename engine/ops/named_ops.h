// The ops that other folders request by name: the sum of a tensor's gradients, and the product with which `trainctl
// bench` measures a device's peak. All others come from the layers of a job.
#pragma once

#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef add_op, matmul_op;

}  // namespace trainctl
