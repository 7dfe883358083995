// Tests of softmax and its loss for masked rows and for numbers far from 0.
#include "tests/op_cases/far_rows.h"

#include <doctest/doctest.h>

namespace trainctl {

TEST_CASE("a softmax and its loss match double for masked rows and numbers far from 0") {
  for (const int64_t n : {1, 2, 37, 64, 1023, 50257}) {
    CAPTURE(n);
    check_far_rows(cpu_device(), DType::f32, n);
    check_far_columns(cpu_device(), DType::f32, n);
  }
}

}  // namespace trainctl
