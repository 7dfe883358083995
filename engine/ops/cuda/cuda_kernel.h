// The interface between a Program and the kernels of an NVIDIA GPU. As in kernel.h, a kernel is prepared once, when a
// program is loaded, and then enqueued every step, or captured once into a graph and replayed.
// Includes no CUDA header, so code that only lists or binds kernels needs none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>

#include "engine/ops/kernel.h"

struct CUstream_st;  ///< cudaStream_t is a pointer to CUDA's CUstream_st

namespace trainctl {

using CudaStream = CUstream_st*;

/// Device memory that a kernel uses only while it runs: partial results, the libraries' workspace.
/// There is one a stream: kernels of a stream run one after another, so they share it.
class CudaScratch {
 public:
  /// Called while kernels are prepared: asks for at least `bytes`.
  void need(int64_t bytes) { bytes_ = std::max(bytes_, bytes); }
  int64_t bytes() const { return bytes_; }
  /// Called by the executor when all kernels of the stream are prepared. 256-byte aligned.
  void set_memory(void* memory) { memory_ = memory; }
  /// Valid when a kernel is enqueued, not while it is prepared.
  void* memory() const { return memory_; }

 private:
  int64_t bytes_ = 0;
  void* memory_ = nullptr;
};

/// All pointers, including `scalars`, are to memory of the current device; `threads` is unused.
struct CudaKernelCall : KernelCall {
  CudaScratch* scratch = nullptr;
  bool tf32 = false;  ///< products of f32 may round their operands to TF32 (precision: tf32)
};

/// Enqueues the kernel on the stream. Allocates nothing, does not block, can be captured.
/// The same arguments and memory give the same bits: no result depends on the order of atomics.
using CudaKernel = std::function<void(CudaStream stream)>;
using PrepareCudaKernel = CudaKernel (*)(const CudaKernelCall& call);

struct CudaKernelDef {
  const char* name;  ///< same as in its KernelDef
  PrepareCudaKernel prepare;
  /// Its operands may be f16. `prepare` returns null for a call that it supports only in f32 and bf16; then, and for
  /// all other kernels, f16 operands become f32 copies (runtime/cuda/f16_operands.h).
  bool takes_f16 = false;
};
inline constexpr bool kTakesF16 = true;
/// The kernels of one family; all_cuda_kernels.cpp finds them by name.
using CudaKernels = std::initializer_list<CudaKernelDef>;

/// Null if there is no kernel of that name, as in a build without CUDA. Each operand of a kernel is f32, bf16 or, if it
/// takes that, f16, as its dtype says; arithmetic is in f32.
const CudaKernelDef* find_cuda_kernel(std::string_view name);
/// Returns whether this build has CUDA kernels.
bool has_cuda_kernels();

}  // namespace trainctl
