// Functions shared by the passes that fuse skinny products: matrix products in which one operand is large and the other
// has only few columns.
#pragma once

#include "engine/compile/compiler.h"
#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef matmul_weight_grad_op;

/// Returns whether the operand is so large that one read less saves more time than one launch more costs.
bool is_large(const Operand& operand);

/// True if `v` runs `kernel`, a product of two operands, in the full precision of its type and without fused
/// operations.
bool is_plain_product(const VirtualInstruction& v, const KernelDef& kernel);

/// True if both are in the same part of the step.
bool in_one_task(const Instruction& a, const Instruction& b);

/// Fuses scales (multiplications by a constant) into the instruction at `at`. If each of its first `count` outputs is
/// read by one scale only, and all scales have the same factor, the instruction gets the factor as its attr `factor`
/// and writes the outputs of the scales. The scales are marked as removed.
void take_scales(Compiler& c, size_t at, size_t count);

}  // namespace trainctl
