// Trial runs of kernels on memory of their own, which measure how long they take.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
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
  /// Returns this many numbers of 8 bits, which are finite as E4M3 and as E5M2.
  void* numbers_of_8_bits(int64_t n);
  /// Replaces all numbers by those of another round; a trial begins with round 0.
  void refill(uint32_t round);

  /// Enqueues the kernel once; false: it is refused.
  using Once = std::function<bool(CudaStream)>;
  /// Milliseconds of one run: the median of a few samples of several runs each. Negative if the run is refused, or if
  /// the device has no memory for the trial.
  float milliseconds(const Once& once, int runs);

  /// A range of device memory, of an even number of bytes.
  struct Range {
    const void* data = nullptr;
    int64_t bytes = 0;
  };
  /// A digest of the results' bits after one run; nothing if the run is refused, or if the device has no memory for the
  /// trial.
  std::optional<uint64_t> bits(const Once& once, std::span<const Range> results);

 private:
  struct Device;
  std::unique_ptr<Device> device_;
};

}  // namespace trainctl::cuda
