// Tests of convolutions with the sizes of image networks: too large for the emulated GPU, and large enough that
// measurements choose the engine.
#include <doctest/doctest.h>

#include <cstdio>

#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/image_cases.h"
#include "tests/op_cases/op_case_checks.h"
#include "tests/op_cases/op_cases.h"
#include "tests/skip.h"

namespace trainctl {
namespace {

const SquareConvolution kStem{{8, 3, {224, 224}}, {64, 3, 7, 7}, 2, 3};

const std::vector<SquareConvolution>& convolutions() {
  static const std::vector<SquareConvolution> all = {
      kStem,
      {{4, 64, {56, 56}}, {64, 64, 3, 3}, 1, 1},
      {{4, 128, {56, 56}}, {128, 128, 3, 3}, 2, 1},
      {{4, 256, {56, 56}}, {64, 256, 1, 1}},
      {{4, 256, {56, 56}}, {512, 256, 1, 1}, 2},
      {{4, 512, {7, 7}}, {512, 512, 3, 3}, 1, 1},
      {{4, 96, {28, 28}}, {96, 1, 3, 3}, 1, 1, 1, 96},
      {{4, 64, {28, 28}}, {128, 16, 3, 3}, 1, 1, 1, 4},
      {{3, 37, {29, 31}}, {41, 37, 3, 3}, 1, 1},
      {{64, 1, {28, 28}}, {20, 1, 5, 5}},
      {{2, 24, {33, 35}}, {24, 24, 3, 3}, 1, 2, 2},
  };
  return all;
}

/// The tolerance is 5e-5 in f32, because some engines transform tiles (Winograd), which rounds more than a sum does.
CaseRun run_in(DType floats, int misaligned_by = 0) { return {cuda_device(misaligned_by), floats, 5e-5}; }

void check_row(const OpCase& row) {
  std::fprintf(stderr, "%s\n", row.name().c_str());  // a run that is cut off shows where
  for (const DType floats : {DType::f32, DType::bf16}) {
    CAPTURE(to_string(floats));
    check_as_on(cpu_device(), row, run_in(floats));
    check_same_bits_twice(row, run_in(floats));
  }
}

bool conv2d_is_wanted() {
  if (!gpu_is_here()) return false;
  if (!is_wanted("conv2d")) skip_test("TRAINCTL_OP_CASES is without conv2d");
  return is_wanted("conv2d");
}

}  // namespace

TEST_CASE("convolutions of image networks have the CPU's results on a GPU, and the same bits twice") {
  if (!conv2d_is_wanted()) return;
  for (const SquareConvolution& convolution : convolutions()) check_row(convolution.row(true));
}

TEST_CASE("so do some whose channels come first") {
  if (!conv2d_is_wanted()) return;
  for (const size_t i : {0, 1, 6}) check_row(convolutions()[i].row(false));
}

TEST_CASE("a convolution takes images that begin at any element") {
  if (!conv2d_is_wanted()) return;
  for (const bool last : {false, true}) {
    check_as_on(cpu_device(), kStem.row(last), run_in(DType::f32, 4));
    check_as_on(cpu_device(), kStem.row(last), run_in(DType::bf16, 2));
  }
}

}  // namespace trainctl
