// The seam between a Program and the kernels of an NVIDIA GPU. As kernel.h's: a kernel is prepared once,
// when a program is loaded, and then enqueued every step, or captured once into a graph and replayed.
// Knows no CUDA header, so that whoever only lists or binds kernels needs none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>

#include "engine/ops/kernel.h"

struct CUstream_st;  ///< CUDA's: cudaStream_t points to it

namespace trainctl {

using CudaStream = CUstream_st*;

/// Device memory for what a kernel holds only while it runs: partial results, the libraries' workspace.
/// One a stream: kernels of a stream run one after another, so they share it.
class CudaScratch {
 public:
  /// While kernels are prepared: at least so many bytes will be there.
  void need(int64_t bytes) { bytes_ = std::max(bytes_, bytes); }
  int64_t bytes() const { return bytes_; }
  /// The executor, once all kernels of the stream are prepared. 256-byte aligned.
  void set_memory(void* memory) { memory_ = memory; }
  /// Only when a kernel is enqueued, not yet when it is prepared.
  void* memory() const { return memory_; }

 private:
  int64_t bytes_ = 0;
  void* memory_ = nullptr;
};

/// All pointers, `scalars` too, are device memory of the current device; `threads` has no meaning.
struct CudaKernelCall : KernelCall {
  CudaScratch* scratch = nullptr;
  bool tf32 = false;  ///< products of f32 may round their operands to TF32 (precision: tf32)
};

/// Enqueues the kernel on the stream. Allocates nothing, waits for nothing, safe while capturing.
/// The same arguments and memory give the same bits: no atomics whose order could show.
using CudaKernel = std::function<void(CudaStream stream)>;
using PrepareCudaKernel = CudaKernel (*)(const CudaKernelCall& call);

struct CudaKernelDef {
  const char* name;  ///< as its KernelDef
  PrepareCudaKernel prepare;
};
/// Those of one family; all_cuda_kernels.cpp has them by name.
using CudaKernels = std::initializer_list<CudaKernelDef>;

/// Null when there is none of that name, as in a build without CUDA. The operands of one kernel may be f32 or bf16 as
/// their dtype says; arithmetic is in f32.
const CudaKernelDef* find_cuda_kernel(std::string_view name);
/// Whether this build has CUDA kernels.
bool has_cuda_kernels();

}  // namespace trainctl
