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

  /// A kernel on operands in host memory, including `scalars`; operands with the same data also share memory on the
  /// device. Each run reads the operands' current contents, outputs included, and writes the kernel's results back.
  /// Fails if the kernel writes outside its operands, or keeps memory that it may not.
  virtual std::function<void()> prepare(const std::string& op, const KernelCall& call) const = 0;
};

const CaseDevice& cpu_device();

}  // namespace trainctl
