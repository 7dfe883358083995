// Trial runs of kernels on memory of their own, which measure how long they take.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl::cuda {

/// A stream, its timer, and operands of pseudo-random numbers.
class Trial {
 public:
  Trial();
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  /// Device memory that lives as long as the trial. Null if the device has too little: then the trial has failed.
  void* memory(int64_t bytes);
  /// Returns this many numbers in [-1, 1), because products of zeros are faster than products of data.
  void* numbers(int64_t n, DType type);

  /// Enqueues the kernel once; false: it is refused.
  using Once = std::function<bool(CudaStream)>;
  /// Milliseconds of one run: the median of a few samples of several runs each. Negative if the run is refused, or if
  /// the device has no memory for the trial.
  float milliseconds(const Once& once, int runs);

 private:
  struct Device;
  std::unique_ptr<Device> device_;
};

}  // namespace trainctl::cuda
