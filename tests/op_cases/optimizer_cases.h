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
  bool flag = false;  ///< for an option specific to the optimizer, and a learning rate scaled by a group
  DType gradient = DType::f32;

  /// in: gradient, squared norm. out: weight, `states` (their fill), (copy).
  KernelCase kernel_case(const char* kernel, const std::vector<CaseOperand>& states, const Attrs& attrs) const;
};

std::vector<OptimizerCall> optimizer_calls();

/// Attr `parameters` of a range of n elements with two parameters, if it has room for two.
std::vector<Ints> two_parameters(int64_t n);

/// Calls each(begin, end) for the elements of each parameter of the first shard.
void for_each_parameter(const Attrs& attrs, const std::function<void(size_t, size_t)>& each);

}  // namespace trainctl
