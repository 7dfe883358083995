// The dims of a tensor, outermost first. Row-major and contiguous everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainctl {

using Shape = std::vector<int64_t>;

inline int64_t num_elements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::string to_string(const Shape& shape);  ///< "[2, 3]"; a scalar is "[]"

}  // namespace trainctl
