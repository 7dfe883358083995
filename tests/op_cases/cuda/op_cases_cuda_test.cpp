// Every row of the families' cases on a GPU, in f32 and bf16, and rows too large for finite differences.
#include <doctest/doctest.h>

#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/cuda/large_cases.h"
#include "tests/op_cases/op_case_checks.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

/// Runs in f32 and bf16.
std::vector<CaseRun> runs() { return {{cuda_device(), DType::f32}, {cuda_device(), DType::bf16}}; }

bool is_product(const OpCase& row) { return get_op(row.op).kernel.is_product; }

/// Matrix products come last, in a separate case: after a kernel that faults, later cases lose the GPU.
template <class Check>
void check_all(Check check_row, bool products = false) {
  if (!gpu_is_here()) return;
  for (CaseRun run : runs()) {
    CAPTURE(to_string(run.floats));
    if (products) run.least_tolerance = 1e-5;  // the tanh of their epilogues is approximate
    for (const OpCase& row : op_cases()) {
      if (is_product(row) == products) check_row(row, run);
    }
  }
}

}  // namespace

TEST_CASE("a forward CUDA kernel gives what the naive loop in double gives") { check_all(check_forward); }
TEST_CASE("backward CUDA kernels give the slopes of finite differences") { check_all(check_backward); }
TEST_CASE("every cut that the rule permits gives the unsharded result on a GPU too") { check_all(check_cuts); }
TEST_CASE("a CUDA kernel that can accumulate adds to what is there") { check_all(check_accumulate); }
TEST_CASE("an op that may work in place gives the same result in place on a GPU") { check_all(check_in_place); }
TEST_CASE("a CUDA kernel run twice gives the same bits") { check_all(check_same_bits_twice); }

TEST_CASE("a CUDA kernel takes operands that begin at any element") {
  if (!gpu_is_here()) return;
  for (const int by : {2, 4, 12}) {
    for (const DType floats : {DType::f32, DType::bf16}) {
      if (by % byte_size(floats) != 0) continue;
      const CaseRun run{cuda_device(by), floats};
      CAPTURE(by);
      for (const OpCase& row : op_cases()) {
        if (!is_product(row)) check_forward(row, run);
      }
      for (const OpCase& row : large_cases()) check_as_on(cpu_device(), row, run);
    }
  }
}

TEST_CASE("large and odd sizes give on a GPU what the CPU gives, and the same bits twice") {
  if (!gpu_is_here()) return;
  for (const CaseRun& run : runs()) {
    CAPTURE(to_string(run.floats));
    for (const OpCase& row : large_cases()) {
      check_as_on(cpu_device(), row, run);
      check_in_place(row, run);
      check_same_bits_twice(row, run);
      if (row.op == "embedding") check_accumulate(row, run);
    }
  }
}

TEST_CASE("kernels that make gradients of parameters write them in bf16 too, and add to them there") {
  if (!gpu_is_here()) return;
  const CaseRun run{cuda_device(), DType::bf16, 0, true};
  const auto check_row = [&](const OpCase& row) {
    if (row.fused) return;
    check_as_on(cpu_device(), row, run);
    check_accumulate(row, run);
    check_same_bits_twice(row, run);
  };
  for (const bool products : {false, true}) {
    for (const OpCase& row : op_cases()) {
      if (is_product(row) == products) check_row(row);
    }
  }
}

TEST_CASE("ids whose rows other ranks hold are left out on a GPU too") {
  if (!gpu_is_here()) return;
  const OpCase row{"embedding", {{{1100}, false, DType::i32, 60}, {{60, 8}}}, {}, {{1100, 8}}};
  for (const CaseRun& run : runs()) check_cuts(row, run);
}

TEST_CASE("matrix products on a GPU pass all checks of the op cases") {
  check_all(check_forward, true);
  check_all(check_backward, true);
  check_all(check_cuts, true);
  check_all(check_accumulate, true);
  check_all(check_in_place, true);
  check_all(check_same_bits_twice, true);
}

}  // namespace trainctl
