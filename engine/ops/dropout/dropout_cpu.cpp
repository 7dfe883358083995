// y = keep ? x / (1 - p) : 0. keep depends on the layer's key, the element's index in the whole tensor, the
// step and the micro-batch alone, so every cut and every recompute draws the same mask. Backward: the same on dy.
#include "engine/ops/cpu_kernels.h"
#include "engine/ops/cpu_strided.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

struct Mask {
  uint64_t key;
  uint64_t high;
  float p;
  float scale;
};

/// One contiguous run of elements whose indices in the whole tensor are first, first + 1, …: a Philox block
/// makes the numbers of four, so whole blocks are drawn kBlocks at a time.
void drop_row(const Mask& mask, uint64_t first, const float* x, float* y, int64_t n) {
  constexpr int kBlocks = 16;
  float uniform[kBlocks * 4];
  int64_t i = 0;
  for (; i < n && ((first + static_cast<uint64_t>(i)) & 3) != 0; ++i) {
    const float u = philox_uniform(mask.key, first + static_cast<uint64_t>(i), mask.high);
    y[i] = u >= mask.p ? x[i] * mask.scale : 0.0f;
  }
  for (; i + 4 * kBlocks <= n; i += 4 * kBlocks) {
    const uint64_t block = (first + static_cast<uint64_t>(i)) >> 2;
    for (int b = 0; b < kBlocks; ++b) {
      const Philox4 bits = philox(mask.key, block + static_cast<uint64_t>(b), mask.high);
      for (int j = 0; j < 4; ++j)
        uniform[4 * b + j] = static_cast<float>(static_cast<int32_t>(bits.v[j] >> 8)) * 0x1p-24f;
    }
    for (int j = 0; j < 4 * kBlocks; ++j) y[i + j] = uniform[j] >= mask.p ? x[i + j] * mask.scale : 0.0f;
  }
  for (; i < n; ++i) {
    const float u = philox_uniform(mask.key, first + static_cast<uint64_t>(i), mask.high);
    y[i] = u >= mask.p ? x[i] * mask.scale : 0.0f;
  }
}

}  // namespace

CpuKernel prepare_dropout(const KernelCall& call) {
  const TensorArg& out = call.out[0];
  const double p = call.attrs.number("p");
  const auto name = static_cast<uint64_t>(call.attrs.integer("key"));
  const Mask mask{stream_key(call.seed, name), 0, static_cast<float>(p),
                  p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f};
  const Shape local = cpu::strides_of(out.shape);
  const Shape global = cpu::strides_of(out.global_shape);
  uint64_t first = 0;
  cpu::Loops<2> loops;
  for (size_t d = 0; d < out.shape.size(); ++d) {
    first += static_cast<uint64_t>(out.offset[d] * global[d]);
    loops.add(out.shape[d], {local[d], global[d]});
  }
  int64_t n = 1;
  if (loops.ndim > 0 && loops.stride[loops.ndim - 1][1] == 1) {
    std::array<int64_t, 2> step{};
    n = loops.take_inner(step);
  }
  return [=, x = call.in[0].as<float>(), y = out.as<float>(), scalars = call.scalars,
          micro_batch = static_cast<uint64_t>(call.micro_batch)] {
    Mask now = mask;
    now.high = (uint64_t{scalars->step} << 20) | micro_batch;
    loops.run([&](const std::array<int64_t, 2>& at) {
      drop_row(now, first + static_cast<uint64_t>(at[1]), x + at[0], y + at[0], n);
    });
  };
}

}  // namespace trainctl
