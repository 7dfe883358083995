// Times kernels on a device of this machine, outside any run: the kernels that programs use, on separate memory. For
// `trainctl bench op`.
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
  /// Size of the last-level cache: memory-bound kernels are timed on more memory than this.
  virtual int64_t cache_bytes() const = 0;
  virtual bool has_kernel(std::string_view name) const = 0;

  /// Zeroed memory of the device, valid until clear(). Throws EnvError if there is not enough.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void clear() = 0;
  virtual void write(void* to, const void* from, int64_t bytes) = 0;

  /// Seconds per run, one value per sample. `calls` are the same kernel on different memory, run in turn; `scalars` are
  /// in host memory. Throws InternalError if the kernel does not take the call.
  virtual std::vector<double> time(std::string_view kernel, std::span<const KernelCall> calls,
                                   const SampleOptions& options) = 0;
  /// The bound of memory-bound kernels: bytes per second, on twice `bytes` of memory. On a CPU the best of reading,
  /// copying and updating in place; on a GPU the rate of a copy. Bytes read and bytes written both count.
  virtual double memory_rate(int64_t bytes, const SampleOptions& options) = 0;
};

std::unique_ptr<KernelTimer> make_cpu_kernel_timer(int threads);
/// Throws EnvError if there is no GPU, or no CUDA in this build.
std::unique_ptr<KernelTimer> make_cuda_kernel_timer();

}  // namespace trainctl
