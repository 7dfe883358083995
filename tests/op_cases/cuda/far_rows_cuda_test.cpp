// Tests of softmax and its loss on a GPU for rows with numbers far from 0. The sizes reach each kernel: a warp or a
// block per row, in registers or shared memory, with packs or single elements.
#include <doctest/doctest.h>

#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/far_rows.h"

namespace trainctl {

TEST_CASE("on a GPU a softmax and its loss agree with double on masked rows and on numbers far from 0") {
  if (!gpu_is_here()) return;
  for (const DType type : {DType::f32, DType::bf16}) {
    CAPTURE(to_string(type));
    for (const int64_t n : {1, 2, 7, 37, 64, 65, 130, 1023, 1024, 8192, 50257}) {
      CAPTURE(n);
      check_far_rows(cuda_device(), type, n);
      if (n < 8192) check_far_columns(cuda_device(), type, n);
    }
    for (const int64_t n : {64, 1023, 4099}) {
      CAPTURE(n);
      check_far_rows(cuda_device(4), type, n);
    }
  }
}

}  // namespace trainctl
