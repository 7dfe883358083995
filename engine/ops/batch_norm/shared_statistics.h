// The kernels whose results ranks that share a batch exchange in one call (compile/fuse/join_statistics.cpp).
#pragma once

#include "engine/ops/op_def.h"

namespace trainctl {

/// x -> mean and variance of a whole batch or of one rank's rows.
extern const KernelDef batch_norm_mean_var_kernel;
/// [parts, 2, features]: means and variances of equal parts of a batch -> those of the whole.
extern const KernelDef batch_norm_merge_kernel;
/// (dy, x, mean, var, ..) -> two sums over the rows, which are added over the ranks.
extern const OpDef batch_norm_grad_stats_op;

}  // namespace trainctl
