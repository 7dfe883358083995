// Divides a tensor into blocks that fit into memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/graph/shape.h"
#include "engine/train/checkpoint/tiling.h"

namespace trainctl {

/// Calls visit(box, first) for boxes of at most `most` elements (at least 1) that tile `shape`, in order: each is
/// contiguous in the row-major tensor, from element `first` on.
template <class Visit>
void for_each_block(const Shape& shape, int64_t most, const Visit& visit) {
  // A block has the whole range of the last dims, a part of dim `cut`, and one index of each dim before `cut`.
  size_t cut = shape.size();
  int64_t row = 1;  // elements of one index of dim `cut`
  while (cut > 0 && row * shape[cut - 1] <= most) row *= shape[--cut];
  if (cut == 0) return visit(whole_box(shape), int64_t{0});
  --cut;
  const int64_t rows = std::max<int64_t>(1, most / row);
  Box box = whole_box(shape);
  std::fill(box.shape.begin(), box.shape.begin() + static_cast<std::ptrdiff_t>(cut), 1);
  for (int64_t first = 0; first < num_elements(shape);) {
    box.shape[cut] = std::min(rows, shape[cut] - box.offset[cut]);
    visit(box, first);
    first += box.shape[cut] * row;
    box.offset[cut] += box.shape[cut];
    for (size_t d = cut; d > 0 && box.offset[d] == shape[d]; --d) {
      box.offset[d] = 0;
      ++box.offset[d - 1];
    }
  }
}

}  // namespace trainctl
