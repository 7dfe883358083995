// Calls that every optimizer's update kernel must pass: gradients in f32 and bf16, clipped and not, with weight
// decay and without, and with the weights' bf16 copy.
#pragma once

#include <functional>

#include "tests/op_cases/op_cases.h"

namespace trainctl {

struct OptimizerCall {
  int64_t n = 0;
  bool copy = false;  ///< the last output is a bf16 copy of the weights
  double clip_norm = 0, weight_decay = 0;
  bool flag = false;  ///< set for calls that also use the optimizer's own option, and a learning rate scaled by a group
  DType gradient = DType::f32;

  /// The case of an update kernel. Inputs: gradient, squared norm. Outputs: weight, the `states` (with the values that
  /// they begin with), and the bf16 copy if there is one.
  KernelCase kernel_case(const char* kernel, const std::vector<CaseOperand>& states, const Attrs& attrs) const;
};

std::vector<OptimizerCall> optimizer_calls();

/// The attribute `parameters` for a range of n elements that two parameters share, if the range has room for two.
std::vector<Ints> two_parameters(int64_t n);

/// Calls each(begin, end) for the elements of each parameter of the first shard.
void for_each_parameter(const Attrs& attrs, const std::function<void(size_t, size_t)>& each);

}  // namespace trainctl
