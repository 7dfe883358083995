// Times kernels and the limits of the device in the same run: the rate of a large matrix product, and of a copy.
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
  int copies = 1;                         ///< sets of operands that were used in turn
  double peak_flops = 0, copy_bytes = 0;  ///< the device's, a second; 0: not measured

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

  /// Of the largest product that is tried, in operations a second; 0 where the device has no such product. Measured
  /// once.
  double peak_flops(const BenchType& type);
  /// Bytes read and written a second by a copy beyond the caches. Measured once.
  double copy_bytes();

 private:
  std::vector<double> samples(const OpRequest& request, int copies);
  std::vector<KernelCall> calls(const OpRequest& request, int copies);

  KernelTimer& timer_;
  const SampleOptions options_;
  const StepScalars scalars_{.learning_rate = 1e-9f};
  std::map<std::pair<DType, bool>, double> peaks_;
  double copy_bytes_ = 0;
};

}  // namespace trainctl
