// Tests that cuDNN computes the calls that the engine gives to it: the op cases only see the results, which the
// engine's own kernels give too.
#include <doctest/doctest.h>

#include "engine/ops/cuda/cudnn_plans.h"
#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/skip.h"

namespace trainctl {
namespace {

using cuda::CudnnAttention;
using cuda::CudnnTensor;

bool cudnn_is_here() {
  if (!gpu_is_here()) return false;
  if (cuda::cudnn_fault().empty()) return true;
  skip_test(cuda::cudnn_fault());
  return false;
}

/// A call of cuDNN with q, k and v packed as in the layer attention: for each kv head its queries, its key, its value.
CudnnAttention packed(int64_t b, int64_t heads, int64_t t, int64_t d, bool causal, bool backward,
                      DType dtype = DType::bf16) {
  const int64_t row = 3 * heads * d;
  const CudnnTensor x{{b, heads, t, d}, {t * row, 3 * d, row, 1}};
  CudnnAttention attention{x, x, x, {{b, heads, t, d}, {t * heads * d, d, heads * d, 1}}};
  attention.logs = {{b, heads, t, 1}, {heads * t, t, 1, 1}};
  attention.causal = causal;
  attention.scale = 0.125;
  attention.backward = backward;
  attention.dtype = dtype;
  return attention;
}

/// One sample with grouped queries that are packed per kv head. Each kv head is passed to cuDNN as if it were a sample.
CudnnAttention heads_as_samples(int64_t kv_heads, int64_t group, int64_t t, int64_t d, bool backward) {
  const int64_t of_head = (group + 2) * d, row = kv_heads * of_head;
  const CudnnTensor q{{kv_heads, group, t, d}, {of_head, d, row, 1}},
      k{{kv_heads, 1, t, d}, {of_head, of_head, row, 1}};
  CudnnAttention attention{q, k, k, {{kv_heads, group, t, d}, {group * d, d, kv_heads * group * d, 1}}};
  attention.logs = {{kv_heads, group, t, 1}, {group * t, t, 1, 1}};
  attention.causal = true;
  attention.scale = 0.125;
  attention.backward = backward;
  return attention;
}

}  // namespace

/// A call with one query head of each group, whose dk and dv are separate from those of the other query heads.
CudnnAttention one_query_a_group(int64_t b, int64_t kv_heads, int64_t group, int64_t t, int64_t d) {
  const int64_t of_head = (group + 2) * d, row = kv_heads * of_head, heads = kv_heads * group;
  const CudnnTensor x{{b, kv_heads, t, d}, {t * row, of_head, row, 1}};
  CudnnAttention attention{x, x, x, {{b, kv_heads, t, d}, {t * heads * d, group * d, heads * d, 1}}};
  attention.logs = {{b, kv_heads, t, 1}, {kv_heads * t, t, 1, 1}};
  attention.dk = attention.dv = {{b, kv_heads, t, d}, {kv_heads * t * d, t * d, d, 1}};
  attention.causal = attention.backward = true;
  attention.scale = 0.125;
  return attention;
}

TEST_CASE("cuDNN's attention takes the kv heads of one sample, with their queries, in the place of samples") {
  if (!cudnn_is_here()) return;
  for (const int64_t t : {192, 1024, 2048}) {
    CAPTURE(t);
    CHECK(cuda::cudnn_plan(heads_as_samples(8, 4, t, 64, false)) != nullptr);
  }
}

/// For some sizes cuDNN has no deterministic gradient of whole groups (version 9.19: 2048 rows).
TEST_CASE("cuDNN has a deterministic gradient of one query head of each group, with its own gradients of the keys") {
  if (!cudnn_is_here()) return;
  for (const int64_t t : {64, 192, 704, 1000, 1024, 2048}) {
    for (const int64_t d : {64, 128}) {
      CAPTURE(t);
      CAPTURE(d);
      const auto plan = cuda::cudnn_plan(one_query_a_group(2, 4, 4, t, d));
      REQUIRE(plan != nullptr);
      CHECK(plan->workspace() <= kMostCudnnWorkspace);
    }
  }
}

TEST_CASE("cuDNN has a deterministic attention, forward and backward, for packed heads of all lengths") {
  if (!cudnn_is_here()) return;
  for (const int64_t t : {64, 192, 704, 1000, 1024, 2048}) {
    for (const int64_t d : {64, 128}) {
      for (const bool causal : {false, true}) {
        for (const bool backward : {false, true}) {
          CAPTURE(t);
          CAPTURE(d);
          CAPTURE(causal);
          CAPTURE(backward);
          const auto plan = cuda::cudnn_plan(packed(2, 4, t, d, causal, backward));
          REQUIRE(plan != nullptr);
          CHECK(plan->workspace() <= kMostCudnnWorkspace);
          CHECK(plan == cuda::cudnn_plan(packed(2, 4, t, d, causal, backward)));
          if (t == 1024) CHECK(cuda::cudnn_plan(packed(2, 4, t, d, causal, backward, DType::f16)) != nullptr);
        }
      }
    }
  }
}

TEST_CASE("cuDNN has deterministic convolutions of channels-last images in bf16, f16, f32 and tf32") {
  if (!cudnn_is_here()) return;
  const auto image = [](int64_t n, int64_t c, int64_t h, int64_t w) {
    return CudnnTensor{{n, c, h, w}, {h * w * c, 1, w * c, c}};
  };
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const bool tf32 : {false, true}) {
      using Kind = cuda::CudnnConvolution::Kind;
      for (const Kind kind : {Kind::forward, Kind::data, Kind::weight}) {
        cuda::CudnnConvolution c;
        c.kind = kind;
        c.x = image(4, 64, 28, 28), c.w = image(128, 64, 3, 3), c.y = image(4, 128, 14, 14);
        c.before = c.after = {1, 1}, c.stride = {2, 2}, c.dilation = {1, 1};
        c.dtype = dtype;
        c.w_dtype = kind == Kind::weight ? DType::f32 : dtype;  // as the engine asks
        c.tf32 = tf32;
        CAPTURE(static_cast<int>(kind));
        CAPTURE(to_string(dtype));
        CAPTURE(tf32);
        const auto engines = cuda::cudnn_engines(c, kMostCudnnWorkspace);
        INFO(engines->fault());
        REQUIRE(!engines->names().empty());
        CHECK(engines->plan(0) != nullptr);
      }
    }
  }
}

}  // namespace trainctl
