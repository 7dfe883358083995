// The CPU uses host memory directly: kernels run on the operands in place, and may not allocate.
#include "engine/base/error.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "tests/op_cases/allocations.h"
#include "tests/op_cases/case_device.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

class CpuDevice final : public CaseDevice {
 public:
  std::function<void()> prepare(const std::string& op, const KernelCall& call) const override {
    const CpuKernelDef* kernel = find_cpu_kernel(op);
    if (kernel == nullptr) check(false, "no CPU kernel of op " + op);
    cpu::start_workers(call.threads);
    return [op, run = kernel->prepare(call), exempt = may_allocate(op)] {
      const int64_t before = allocations();
      run();
      if (allocations() != before && !exempt) check(false, "running the kernel of op " + op + " allocates");
    };
  }
};

}  // namespace

const CaseDevice& cpu_device() {
  static const CpuDevice device;
  return device;
}

}  // namespace trainctl
