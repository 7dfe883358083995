// Maps elements of a micro-batch's tensor to the tensor of the whole batch, so that random values of an element do not
// depend on the number of micro-batches. Plain functions, safe in .cu files.
#pragma once

#include <cstdint>

#include "engine/base/attrs.h"
#include "engine/graph/shape.h"
#include "engine/ops/random.h"

namespace trainctl {

/// The place of the batch in a tensor, as text in attrs and expressions: dim `dim` is [outer, rows, inner]. A tensor
/// that does not depend on the batch has a copy for each micro-batch: dim 0, outer 1.
struct BatchPlace {
  int64_t micro_batches = 1, dim = 0, outer = 1;

  /// Attr `batch` of an op: [micro_batches, dim, outer]; one micro-batch if it is absent.
  static BatchPlace of(const Attrs& attrs) {
    const Ints batch = attrs.ints("batch");
    return batch.size() == 3 ? BatchPlace{batch[0], batch[1], batch[2]} : BatchPlace{};
  }
};

/// Index in the micro-batch's tensor -> index in the whole batch's.
struct BatchIndex {
  int64_t run = 0;     ///< elements that are consecutive in both; 0: all
  int64_t stride = 0;  ///< from one run to the next, in the whole batch's tensor
  int64_t first = 0;   ///< index of the micro-batch's first run

  BatchIndex() = default;
  /// `shape` is that of the micro-batch's tensor on all ranks together.
  BatchIndex(const BatchPlace& place, const Shape& shape, int micro_batch) {
    if (place.micro_batches == 1) return;
    int64_t elements = 1;
    for (size_t d = static_cast<size_t>(place.dim); d < shape.size(); ++d) elements *= shape[d];
    elements /= place.outer;
    first = micro_batch * elements;
    if (elements == num_elements(shape)) return;
    run = elements;
    stride = elements * place.micro_batches;
  }

  TRAINCTL_HOST_DEVICE int64_t of(int64_t index) const {
    return run == 0 ? first + index : first + index / run * stride + index % run;
  }
};

}  // namespace trainctl
