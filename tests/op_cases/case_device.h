// Where the kernels of a test run. The tests hold all operands in host memory and know of no device.
#pragma once

#include <functional>
#include <string>

#include "engine/ops/kernel.h"

namespace trainctl {

class CaseDevice {
 public:
  virtual ~CaseDevice() = default;

  /// A kernel on operands in host memory, `scalars` too; two operands with the same data share memory on the device
  /// as well. Each run takes what the operands hold then, outputs included, and leaves there what the kernel made.
  /// Fails where the kernel writes outside its operands, or keeps memory that it may not.
  virtual std::function<void()> prepare(const std::string& op, const KernelCall& call) const = 0;
};

const CaseDevice& cpu_device();

}  // namespace trainctl
