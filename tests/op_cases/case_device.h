// The device that runs a test's kernels. The tests keep all operands in host memory and are independent of the device.
#pragma once

#include <functional>
#include <string>

#include "engine/ops/kernel.h"

namespace trainctl {

/// The scalars of a step whose loss is not scaled, which gradients of losses read.
inline constexpr StepScalars kUnscaledStep{};

class CaseDevice {
 public:
  virtual ~CaseDevice() = default;

  /// Prepares a kernel on operands in host memory; operands include `scalars`. Operands with the same data also share
  /// memory on the device. Each call of the result reads the current contents of the operands, outputs included, runs
  /// the kernel, and writes its results back. It fails if the kernel writes outside its operands, or keeps memory that
  /// it may not keep.
  virtual std::function<void()> prepare(const std::string& op, const KernelCall& call) const = 0;
};

const CaseDevice& cpu_device();

}  // namespace trainctl
