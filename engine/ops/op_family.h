// A family: the ops, kernels, layers, losses, optimizers and metrics of one folder in engine/ops. all_ops.def lists the
// folders. For each of them
//   <folder>/<folder>.cpp        defines  <folder>_family      what the planner and the compiler know
//   <folder>/<folder>_cpu.cpp    defines  <folder>_cpu         the kernels of CPUs (kernel.h)
//   <folder>/<folder>_cuda.cu    defines  <folder>_cuda        the kernels of NVIDIA GPUs (cuda/cuda_kernel.h)
#pragma once

#include <initializer_list>
#include <span>

#include "engine/ops/op_def.h"

namespace trainctl {

struct LayerDef;      // layer_def.h
struct LossDef;       // loss_def.h
struct OptimizerDef;  // optimizer_def.h
struct MetricDef;     // metric_def.h

struct OpFamily {
  std::initializer_list<const OpDef*> ops;
  /// Kernels that no op of the graph runs.
  std::initializer_list<const KernelDef*> kernels = {};
  // Names that a job file may use, in the order of its reference (docs/job.md).
  std::initializer_list<const LayerDef*> layers = {};
  std::initializer_list<const LossDef*> losses = {};
  std::initializer_list<const OptimizerDef*> optimizers = {};
  std::initializer_list<const MetricDef*> metrics = {};
  /// Under which name a profile adds up its kernels. Null: losses, optimizers and products are parts of their own, and
  /// all others are one part.
  const char* profile_part = nullptr;
};

/// In the order of all_ops.def.
std::span<const OpFamily* const> all_families();
/// The family that defines it; for a kernel of a plugin, a family without definitions.
const OpFamily& family_of(const KernelDef& kernel);

}  // namespace trainctl
