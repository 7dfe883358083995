// The forward ops as naive loops in double: what kernels and finite differences are compared with.
#pragma once

#include <vector>

#include "engine/base/attrs.h"
#include "engine/graph/graph.h"

namespace trainctl {

struct Tensor64 {
  Shape shape;
  std::vector<double> values;
};

/// The scalars that both sides of a comparison use where an op draws random numbers.
inline constexpr uint64_t kCaseSeed = 17;
inline constexpr uint32_t kCaseStep = 5;
inline constexpr int kCaseMicroBatch = 3;

/// One node's outputs. Fails where the op has no reference.
std::vector<Tensor64> reference(const std::string& op, const std::vector<Tensor64>& inputs, const Attrs& attrs);

}  // namespace trainctl
