// Shared by the passes that fuse products with few columns.
#pragma once

#include "engine/compile/compiler.h"
#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef matmul_weight_grad_op;

/// Returns whether the operand is so large that one read less saves more time than one launch more costs.
bool is_large(const Operand& operand);

/// True if it is that product of two operands, in full precision for its type and with nothing fused.
bool is_plain_product(const VirtualInstruction& v, const KernelDef& kernel);

/// True if both are in the same part of the step.
bool in_one_task(const Instruction& a, const Instruction& b);

/// If only a scale reads each of the first `count` outputs of the instruction at `at`, all by the same factor, the
/// instruction takes that as attr factor and writes the scales' outputs. The scales are marked as removed.
void take_scales(Compiler& c, size_t at, size_t count);

}  // namespace trainctl
