// Runs a KernelCase on a device, or as the naive loop.
#pragma once

#include "tests/op_cases/case_device.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {

using Results = std::vector<std::vector<double>>;

/// A case and the initial values of its operands, which every run begins with.
class KernelCaseRun {
 public:
  explicit KernelCaseRun(const KernelCase& row);

  /// The outputs after this number of runs on the same memory. `wide`: bf16 operands are passed as f32.
  Results on(const CaseDevice& device, bool wide, int times) const;
  /// The same outputs, computed by the family's KernelReference. Fails if the family has none.
  Results naive(int times) const;

 private:
  const KernelCase& row_;
  std::vector<std::vector<double>> values_;  ///< values of each input, then of each output
};

/// The largest difference, relative to the expected element, or to 1 if that is larger. A NaN counts as an infinite
/// difference.
double worst_part(const std::vector<double>& got, const std::vector<double>& expected);

}  // namespace trainctl
