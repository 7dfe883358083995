// A family: the ops, kernels, layers, losses and optimizers of one folder under engine/ops. all_ops.def lists the
// folders; for each of them
//   <folder>/<folder>.cpp        defines  <folder>_family      what the planner and the compiler know
//   <folder>/<folder>_cpu.cpp    defines  <folder>_cpu         the kernels of CPUs (kernel.h)
//   <folder>/<folder>_cuda.cu    defines  <folder>_cuda        the kernels of NVIDIA GPUs (cuda/cuda_kernel.h)
#pragma once

#include <initializer_list>
#include <span>

#include "engine/ops/layer_def.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/op_def.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {

struct OpFamily {
  std::initializer_list<const OpDef*> ops;
  /// Those that no op of the graph runs.
  std::initializer_list<const KernelDef*> kernels = {};
  std::initializer_list<const LayerDef*> layers = {};
  std::initializer_list<const LossDef*> losses = {};
  std::initializer_list<const OptimizerDef*> optimizers = {};
};

/// In the order of all_ops.def.
std::span<const OpFamily* const> all_families();

}  // namespace trainctl
