// The contiguous runs that two boxes of one tensor have in common.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/graph/box.h"

namespace trainctl {

std::optional<Box> intersection(const Box& a, const Box& b);

/// Number of elements that come before `place` in the row-major box.
int64_t place_in(const Box& box, const Shape& place);

/// Calls visit(place in `from`, place in `to`, elements) for the parts of `common` that are contiguous in both boxes,
/// in the order of both.
template <class Visit>
void for_each_run(const Box& common, const Box& from, const Box& to, const Visit& visit) {
  size_t outer = common.shape.size();  // the dims before this one are counted through
  int64_t run = 1;
  bool spans = true;
  while (outer > 0 && spans) {
    --outer;
    run *= common.shape[outer];
    spans = common.shape[outer] == from.shape[outer] && common.shape[outer] == to.shape[outer];
  }
  Shape at = common.offset;
  for (int64_t left = num_elements(common.shape); left > 0; left -= run) {
    visit(place_in(from, at), place_in(to, at), run);
    for (size_t d = outer; d-- > 0;) {
      if (++at[d] < common.offset[d] + common.shape[d]) break;
      at[d] = common.offset[d];
    }
  }
}

}  // namespace trainctl
