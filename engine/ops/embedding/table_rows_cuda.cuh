// Describes which rows of an embedding's table this rank holds.
#pragma once

#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {

struct TableRows {
  int64_t first, count, vocab;

  explicit TableRows(const TensorArg& table)
      : first(table.offset[0]), count(table.shape[0]), vocab(table.global_shape[0]) {}

  /// The row in this rank's part, or -1 if another rank has it.
  __device__ int local(int32_t id) const {
    if (id < 0 || id >= vocab)
      data_is_wrong(
          "embedding: the data contains an id that is not a row of the table; set vocab to a number "
          "greater than the largest id");
    const int64_t row = id - first;
    return row >= 0 && row < count ? static_cast<int>(row) : -1;
  }
};

}  // namespace trainctl
