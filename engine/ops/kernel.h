// The interface between a Program and the kernels of a device. A kernel is prepared once, when a program is loaded
// (its pointers never change after that), and then run every step without allocating.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/graph/dtype.h"
#include "engine/graph/shape.h"
#include "engine/ops/epilogue.h"

namespace trainctl {

/// Values that change from step to step. The trainer writes them to a fixed place before each step.
struct StepScalars {
  float learning_rate = 0;
  float adam_bias1 = 1;  ///< 1 - beta1^t, t counting updates from 1
  float adam_bias2 = 1;  ///< 1 - beta2^t
  uint32_t step = 0;     ///< from 0 over the whole run
  uint32_t epoch = 0;
  /// For a loss with ignore_index: labels of the step's whole batch, over all ranks and micro-batches, divided by those
  /// among them that count; 0 if none does.
  float label_weight = 1;
  /// adafactor: weight of this step's squares in their means, and the highest relative rate.
  float square_rate = 1, relative_rate = 1;
  /// Weight of the new weights in their average (optimizer.average); 1: the average becomes a copy of them.
  float average_rate = 1;
  /// Factor of the loss in the backward pass (precision: fp16). Kernels of losses multiply gradients by it, not the
  /// loss that they report; updates divide by it.
  float loss_scale = 1;
};

/// One operand: contiguous, row-major. For a slice of a larger tensor, also its offset in that tensor.
struct TensorArg {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;              ///< shape of this rank's part
  Shape global_shape;       ///< shape of the whole tensor; same ndim
  Shape offset;             ///< index of this part's first element in the whole, per dim
  bool accumulate = false;  ///< outputs: add to the current contents

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t size() const { return num_elements(shape); }
};

struct KernelCall {
  std::vector<TensorArg> in;
  std::vector<TensorArg> out;
  Attrs attrs;
  const StepScalars* scalars = nullptr;  ///< lives as long as the program
  int micro_batch = 0;
  uint64_t seed = 0;  ///< the job's
  int threads = 1;    ///< how many this kernel may use
};

/// Runs the kernel once. Must not allocate.
using CpuKernel = std::function<void()>;
using PrepareCpuKernel = CpuKernel (*)(const KernelCall& call);

struct CpuKernelDef {
  const char* name;  ///< the name of its KernelDef
  PrepareCpuKernel prepare;
};
/// The kernels of one family; all_cpu_kernels.cpp finds them by name.
using CpuKernels = std::initializer_list<CpuKernelDef>;

/// Null if there is none of that name.
///
/// In bf16 jobs activations, their gradients and the weights that kernels read are bf16, and in fp16 jobs f16;
/// statistics, losses and labels are f32; gradients of parameters are f32 or bf16. Each operand has its dtype, and one
/// kernel may have both. Arithmetic is f32. Matrix products have the attr tf32 if precision: tf32 lets a GPU round
/// their operands.
const CpuKernelDef* find_cpu_kernel(std::string_view name);

}  // namespace trainctl
