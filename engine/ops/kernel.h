// The seam between a Program and the kernels of a device. A kernel is prepared once, when a program
// is loaded (its pointers never change after that), and then run every step without allocating.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/graph/dtype.h"
#include "engine/graph/shape.h"

namespace trainctl {

/// What changes from step to step. The trainer writes it at a fixed place before each step.
struct StepScalars {
  float learning_rate = 0;
  float adam_bias1 = 1;  ///< 1 - beta1^t, t counting updates from 1
  float adam_bias2 = 1;  ///< 1 - beta2^t
  uint32_t step = 0;     ///< from 0 over the whole run
  uint32_t epoch = 0;
};

/// One operand: contiguous, row-major. For a slice of a larger tensor, where it lies in it.
struct TensorArg {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;         ///< of this rank's part
  Shape global_shape;  ///< of the whole tensor; same ndim
  Shape offset;        ///< of this part's first element in the whole, per dim
  bool accumulate = false;  ///< outputs: add to what is there

  template <class T>
  T* as() const { return static_cast<T*>(data); }
  int64_t size() const { return num_elements(shape); }
};

struct KernelCall {
  std::vector<TensorArg> in;
  std::vector<TensorArg> out;
  Attrs attrs;
  const StepScalars* scalars = nullptr;  ///< lives as long as the program
  int micro_batch = 0;
  uint64_t seed = 0;     ///< of the job
  int threads = 1;       ///< that this kernel may use
};

/// Runs the kernel once. Must not allocate.
using CpuKernel = std::function<void()>;
using PrepareCpuKernel = CpuKernel (*)(const KernelCall& call);

struct CpuKernelDef {
  const char* name;  ///< an OpDef's name, or one of the kernels without OpDef listed below
  PrepareCpuKernel prepare;
};

/// Every CPU kernel, from the list in all_cpu_kernels.cpp.
///
/// Kernels that are not graph ops, but that compiled programs use:
///   copy_slice    out[o,i] = in[o,index,i]      attrs outer, parts, index, inner (elements)
///   pack          out[p,o,i] = in[o,p,i]        attrs outer, parts, inner
///   unpack        out[o,p,i] = in[p,o,i]        attrs outer, parts, inner
///   accumulate    out += in                     same shape
///   zero          out = 0
///   sum_squares   out[1] = sum in^2 (double inside); can accumulate
///   sgd_update    in: gradient, (clip norm^2 [1]); out: weight, (momentum), (bf16 copy of the weight)
///                 attrs momentum, nesterov, weight_decay, clip_norm (0 = none)
///   adam_update   in: gradient, (clip norm^2 [1]); out: weight, m, v, (bf16 copy of the weight)
///                 attrs beta1, beta2, eps, weight_decay, decoupled (adamw), clip_norm
///                 The copy, where there is one, is the last output and the only one of type bf16: the new
///                 weight rounded to nearest even. It is written and never read.
///   softmax_cross_entropy_with_grad, mae_with_grad, mse_with_grad
///                 the loss and the op's gradient in one pass. in: prediction, label; out: loss [1] f32 (can
///                 accumulate), gradient like the prediction, which may lie on the prediction. attr scale
///   elementwise   a chain of element-wise ops in one pass; attr expression: ops/elementwise/expression.h
/// An op with can_descend takes the attr descend: out -= learning_rate * result (out.accumulate is set).
/// matmul and matmul_weight_grad also take the attrs of the compiler's fusion: matmul/matmul.cpp has them.
/// Products have the attr tf32 where precision: tf32 lets a GPU round their operands.
///
/// In bf16 jobs activations, their gradients and the weights that kernels read are bf16; statistics, losses and
/// labels are f32; gradients of parameters are f32 or bf16. Operands say which: one kernel may have both. Arithmetic
/// is f32.
std::span<const CpuKernelDef> all_cpu_kernels();
const CpuKernelDef* find_cpu_kernel(std::string_view name);

}  // namespace trainctl
