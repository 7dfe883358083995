// Times kernels and the limits of the device in the same run: the rate of matrix products, and of memory.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/bench/op_request.h"
#include "engine/runtime/measure/kernel_timer.h"
#include "engine/runtime/measure/sampling.h"

namespace trainctl {

struct OpResult {
  OpRequest request;
  Spread seconds;  ///< a run
  Cost work;
  int copies = 1;  ///< sets of operands that were used in turn
  /// The device's, a second; 0: not measured, or no limit since the operands lie in the caches.
  double peak_flops = 0, memory_bytes = 0;

  double flops_per_second() const { return work.flops / seconds.median; }
  double bytes_per_second() const { return work.bytes / seconds.median; }
  /// The least time that the limits allow, as a part of the median.
  double of_limit() const;
};

class OpBench {
 public:
  OpBench(KernelTimer& timer, const SampleOptions& options) : timer_(timer), options_(options) {}

  bool has(const std::string& op) const { return timer_.has_kernel(op); }
  /// Throws SpecError where the kernel does not take the request, EnvError where memory lacks.
  OpResult run(const OpRequest& request);

  /// Of the best of a few square products, in operations a second; 0 where the device has no such product. Measured
  /// once.
  double peak_flops(const BenchType& type);
  /// Bytes read and written a second beyond the caches. Measured once.
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
