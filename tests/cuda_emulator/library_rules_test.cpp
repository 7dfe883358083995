// Fallbacks if cuDNN has no engine for a call: padding or slicing the batch, then kernels of trainctl. The emulated
// cuDNN refuses the calls that LibraryRules excludes.
#include "tests/cuda_emulator/library_rules.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/image_cases.h"
#include "tests/op_cases/op_case_checks.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using emulator::library_runs;
using emulator::LibraryRules;

/// Changes the rules during its lifetime.
class With {
 public:
  explicit With(const LibraryRules& rules) { emulator::library_rules() = rules; }
  ~With() { emulator::library_rules() = {}; }
  With(const With&) = delete;
  With& operator=(const With&) = delete;
};

std::vector<OpCase> convolutions() {
  std::vector<OpCase> rows;
  for (const OpCase& row : op_cases())
    if (row.op == "conv2d") rows.push_back(row);
  return rows;
}

/// Convolutions such as the stem of a ResNet: 3 channels, windows of 7 x 7, two pixels apart; tiles with edges, and
/// several parts of the weight gradient.
std::vector<OpCase> larger_convolutions() {
  std::vector<OpCase> rows;
  for (const bool last : {false, true}) {
    for (const SquareConvolution& convolution : {SquareConvolution{{2, 3, {23, 25}}, {66, 3, 7, 7}, 2, 3},
                                                 {{4, 66, {5, 6}}, {5, 66, 3, 3}, 1, 1},
                                                 {{2, 36, {9, 10}}, {36, 1, 3, 3}, 1, 2, 2, 36},
                                                 {{2, 10, {12, 7}}, {6, 5, 3, 2}, 3, 1, 1, 2}})
      rows.push_back(convolution.row(last));
  }
  return rows;
}

/// Checks that results match the CPU, which the op cases compare with float64.
void check_all(const OpCase& row, DType floats) {
  CaseRun run{cuda_device(), floats};
  run.least_tolerance = 1e-5;
  check_as_on(cpu_device(), row, run);
  check_accumulate(row, run);
  check_same_bits_twice(row, run);
}

void check_convolutions(DType floats) {
  CAPTURE(to_string(floats));
  for (const OpCase& row : convolutions()) check_all(row, floats);
  const CaseRun run{cuda_device(), floats}, bf16_gradients{cuda_device(), DType::bf16, 0, true};
  for (const OpCase& row : larger_convolutions()) {
    check_as_on(cpu_device(), row, run);
    check_same_bits_twice(row, run);
    check_as_on(cpu_device(), row, bf16_gradients);
  }
}

}  // namespace

TEST_CASE("a convolution that cuDNN has no engine for runs in the engine's own kernels, with the same results") {
  const With rules({.convolutions = false});
  const int before = library_runs();
  for (const DType floats : {DType::f32, DType::bf16}) check_convolutions(floats);
  CHECK(library_runs() == before);
}

TEST_CASE("the engine's own convolution passes every cut of its rule") {
  const With rules({.convolutions = false});
  for (const OpCase& row : convolutions()) check_cuts(row, {cuda_device(), DType::f32, 1e-5});
}

TEST_CASE("channels-last images whose channels cuDNN does not take are padded with zeros, with the same results") {
  const With rules({.channel_unit = 8});
  const int before = library_runs();
  check_convolutions(DType::bf16);
  CHECK(library_runs() > before);
}

TEST_CASE("a batch that is too large for cuDNN goes to it in slices, with the same results") {
  for (const int64_t most_images : {1, 2}) {
    const With rules({.most_images = most_images});
    const int before = library_runs();
    for (const DType floats : {DType::f32, DType::bf16}) check_convolutions(floats);
    CHECK(library_runs() > before);
  }
}

TEST_CASE("a weight gradient that cuDNN computes only in bf16 is converted to f32, with the same results") {
  const CaseRun run{cuda_device(), DType::bf16};
  for (const int64_t most_images : {1, 1 << 20}) {
    const With rules({.most_images = most_images, .wide_gradients = false});
    const int before = library_runs();
    for (const OpCase& row : convolutions()) {
      if (row.fused) continue;
      check_as_on(cpu_device(), row, run);
      check_accumulate(row, run);
    }
    CHECK(library_runs() > before);
  }
}

TEST_CASE("convolutions in f16 have the same results, whole and in slices") {
  const CaseRun run{cuda_device(), DType::f16};
  for (const LibraryRules& rules : {LibraryRules{}, LibraryRules{.most_images = 1}}) {
    const With with(rules);
    for (const OpCase& row : convolutions()) check_as_on(cpu_device(), row, run);
  }
  check_as_on(cpu_device(), larger_convolutions().back(), run);
}

TEST_CASE("slices are padded too, with the same results") {
  const With rules({.channel_unit = 8, .most_images = 1});
  check_convolutions(DType::bf16);
}

TEST_CASE("bias and relu of a convolution may be part of cuDNN's, with the same results") {
  const With rules({.only_fused = true});
  for (const OpCase& row : convolutions()) {
    if (!row.fused) continue;
    for (const DType floats : {DType::f32, DType::bf16}) {
      const CaseRun run{cuda_device(), floats, 1e-5};
      check_forward(row, run);
      check_backward(row, run);
    }
  }
}

TEST_CASE("cuDNN reads and writes packed heads in place, of grouped queries too, with few calls") {
  const With rules({.attention = true});
  const auto row = [](int64_t b, int64_t t, int64_t kv_heads, int64_t group, bool causal, const char* packing) {
    const int64_t d = 8;
    return OpCase{"attention",
                  {{{b, t, kv_heads * (group + 2) * d}}},
                  {{"head_dim", d},
                   {"group", group},
                   {"causal", causal},
                   {"scale", 1.0 / std::sqrt(static_cast<double>(d))},
                   {"packing", std::string(packing)}},
                  {{b, t, kv_heads * group * d}, {b, kv_heads, group, t}}};
  };
  const CaseRun run{cuda_device(), DType::bf16}, in_f16{cuda_device(), DType::f16};
  for (const bool causal : {false, true}) {
    for (const char* packing : {"heads", "qkv"}) {
      check_as_on(cpu_device(), row(2, 9, 3, 2, causal, packing), in_f16);
      check_as_on(cpu_device(), row(2, 9, 3, 2, causal, packing), run);
      check_as_on(cpu_device(), row(3, 5, 2, 2, causal, packing), run);
      check_as_on(cpu_device(), row(1, 7, 4, 3, causal, packing), run);
      check_as_on(cpu_device(), row(3, 6, 1, 2, causal, packing), run);
      check_as_on(cpu_device(), row(2, 6, 3, 1, causal, packing), run);
    }
  }
  {
    const With plain({.attention = true, .grouped_gradients = false});
    for (const bool causal : {false, true}) {
      for (const char* packing : {"heads", "qkv"}) {
        check_as_on(cpu_device(), row(2, 9, 3, 2, causal, packing), run);
        check_as_on(cpu_device(), row(1, 7, 4, 3, causal, packing), run);
      }
    }
  }
  emulator::library_rules() = {.attention = true};
  const auto calls = [&](const OpCase& of) {
    const int before = library_runs();
    check_same_bits_twice(of, run);
    return library_runs() - before;
  };
  const int of_one = calls(row(1, 4, 1, 1, false, "heads"));  // forward and backward, as often as the check runs them
  CHECK(of_one > 0);
  CHECK(calls(row(3, 4, 2, 1, false, "heads")) == of_one);  // strides reach all heads
  CHECK(calls(row(3, 4, 2, 2, false, "qkv")) == of_one);
  CHECK(calls(row(1, 4, 4, 2, false, "heads")) == of_one);      // a kv head and its queries as a sample
  CHECK(calls(row(3, 4, 2, 2, false, "heads")) == 2 * of_one);  // a call for each kv head
  CHECK(calls(row(2, 4, 3, 2, false, "heads")) == 2 * of_one);  // or for each sample, if those are fewer
}

}  // namespace trainctl
