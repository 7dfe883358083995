// Times kernels on a device of this machine, outside any run: the very kernels that programs use, on memory of
// their own. What `trainctl bench op` asks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/kernel.h"

namespace trainctl {

struct SampleOptions {
  int samples = 30;
  double sample_seconds = 1e-3;  ///< a sample is as many runs in a row as take this long; at least one
};

class KernelTimer {
 public:
  virtual ~KernelTimer() = default;

  /// "1 thread of AMD EPYC 9R14", "NVIDIA H200".
  virtual std::string device() const = 0;
  /// Of the last level: memory-bound kernels are timed on more memory than this.
  virtual int64_t cache_bytes() const = 0;
  virtual bool has_kernel(std::string_view name) const = 0;

  /// Zeroed memory of the device, until clear(). Throws EnvError where there is no more.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void clear() = 0;
  virtual void write(void* to, const void* from, int64_t bytes) = 0;

  /// Seconds a run, a value a sample. `calls` are the same kernel on different memory, run in turn; `scalars` are
  /// host memory. Throws InternalError where the kernel does not take the call.
  virtual std::vector<double> time(std::string_view kernel, std::span<const KernelCall> calls,
                                   const SampleOptions& options) = 0;
  /// The limit of kernels that memory bounds: bytes a second, on twice `bytes` of memory. On a CPU the best of
  /// reading, copying and updating in place; on a GPU of a copy. What is read and what is written count alike.
  virtual double memory_rate(int64_t bytes, const SampleOptions& options) = 0;
};

std::unique_ptr<KernelTimer> make_cpu_kernel_timer(int threads);
/// Throws EnvError where there is no GPU, or no CUDA in this build.
std::unique_ptr<KernelTimer> make_cuda_kernel_timer();

}  // namespace trainctl
