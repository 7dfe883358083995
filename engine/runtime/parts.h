// Divides a part of a tensor into stretches that are contiguous in the whole tensor. Used for loading, initial weights
// and gathering.
#pragma once

#include <cstdint>

#include "engine/graph/shape.h"

namespace trainctl {

/// Calls run(in_part, in_whole, length), all in elements and row-major, for each stretch of the part
/// `shape` at `offset` of `whole`, in order. Stretches are as long as possible. Allocates nothing.
template <class Run>
void for_each_run(const Shape& whole, const Shape& offset, const Shape& shape, Run run) {
  // Dims from `cut` on form one stretch: all of them but `cut` itself are whole.
  int cut = static_cast<int>(whole.size()) - 1;
  int64_t inner = 1;
  while (cut > 0 && shape[cut] == whole[cut]) inner *= whole[cut--];
  const int64_t length = cut < 0 ? 1 : shape[cut] * inner;
  const int64_t total = num_elements(shape);
  for (int64_t done = 0; done < total; done += length) {
    int64_t rest = done / length, stride = inner * (cut < 0 ? 1 : whole[cut]);
    int64_t start = cut < 0 ? 0 : offset[cut] * inner;
    for (int d = cut - 1; d >= 0; --d) {
      start += (offset[d] + rest % shape[d]) * stride;
      rest /= shape[d];
      stride *= whole[d];
    }
    run(done, start, length);
  }
}

}  // namespace trainctl
