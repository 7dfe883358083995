// Times kernels, and in the same run the limits of the device: the rates of matrix products and of memory.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/measure/op_request.h"
#include "engine/machine/machine.h"
#include "engine/runtime/measure/kernel_timer.h"
#include "engine/runtime/measure/sampling.h"

namespace trainctl {

struct OpResult {
  OpRequest request;
  Spread seconds;  ///< per run
  Cost work;
  int copies = 1;  ///< number of operand sets that runs cycle through
  /// Rates of the device per second; 0: not measured, or no limit because the operands are in the caches.
  double peak_flops = 0, memory_bytes = 0;

  double flops_per_second() const { return work.flops / seconds.median; }
  double bytes_per_second() const { return work.bytes / seconds.median; }
  /// The least time that the limits allow, as a fraction of the median time.
  double of_limit() const;
};

class OpBench {
 public:
  OpBench(KernelTimer& timer, const SampleOptions& options) : timer_(timer), options_(options) {}

  /// Sets limits that are known from an earlier run on this device, so that they are not measured again.
  void set_limits(const ProductRates& products, BytesPerSecond memory);

  bool has(const std::string& op) const { return timer_.has_kernel(op); }
  /// Throws SpecError if the kernel does not accept the request, EnvError if there is too little memory.
  OpResult run(const OpRequest& request);

  /// The best rate of a few square products, in operations per second; 0 if the device has no such product. Measured
  /// once.
  double peak_flops(const BenchType& type);
  /// Bytes read and written per second, beyond the caches. Measured once.
  double memory_bytes();

 private:
  std::vector<double> samples(const OpRequest& request, int copies, const SampleOptions& options);
  std::vector<KernelCall> calls(const OpRequest& request, int copies);

  KernelTimer& timer_;
  const SampleOptions options_;
  const StepScalars scalars_{.learning_rate = 1e-9f};
  std::map<std::pair<DType, bool>, double> peaks_;
  double memory_bytes_ = 0;
};

}  // namespace trainctl
