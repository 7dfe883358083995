// y = keep ? x / (1 - p) : 0. keep depends only on the layer's key, the step and the element's index in the whole
// batch's tensor, so every layout, micro-batch and recompute draws the same mask. Backward: the same on dy.
#include "engine/ops/cpu/strided_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/elementwise/spans_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

struct Mask {
  uint64_t key;
  uint64_t high;
  float p;
  float scale;
};

/// Applies the mask to a contiguous run of elements whose indices in the whole are first, first + 1, ..: a
/// Philox block has the numbers of four elements, so whole blocks are drawn kBlocks at a time.
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

cpu::Dropout::Dropout(const KernelCall& call, const TensorArg& out, double p, int64_t key, const BatchPlace& batch)
    : scalars_(call.scalars),
      batch_(batch, out.global_shape, call.micro_batch),
      key_(stream_key(call.seed, static_cast<uint64_t>(key))),
      p_(static_cast<float>(p)),
      scale_(p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f) {
  const Shape local = strides_of(out.shape), global = strides_of(out.global_shape);
  Loops<2> loops;
  for (size_t d = 0; d < out.shape.size(); ++d) {
    start_ += out.offset[d] * global[d];
    loops.add(out.shape[d], {local[d], global[d]});
  }
  if (loops.ndim > 0 && loops.stride[loops.ndim - 1][1] == 1) {
    std::array<int64_t, 2> step{};
    row_ = loops.take_inner(step);
  }
  for (int d = 0; d < loops.ndim; ++d) rows_.add(loops.size[d], {loops.stride[d][1]});
}

/// Applies dropout row by row, where a row is contiguous both in the slice and in the whole tensor.
void cpu::Dropout::run(int64_t first, const float* x, float* y, int64_t n) const {
  const Mask mask{key_, scalars_->step, p_, scale_};
  for (int64_t done = 0; done < n;) {
    int64_t row = (first + done) / row_, at = start_ + (first + done) % row_;
    int64_t length = std::min(n - done, row_ - (first + done) % row_);
    for (int d = rows_.ndim - 1; d >= 0; --d) {
      at += row % rows_.size[d] * rows_.stride[d][0];
      row /= rows_.size[d];
    }
    if (batch_.run > 0) length = std::min(length, batch_.run - at % batch_.run);
    drop_row(mask, static_cast<uint64_t>(batch_.of(at)), x + done, y + done, length);
    done += length;
  }
}

namespace {

CpuKernel prepare_dropout(const KernelCall& call) {
  return [drop = cpu::Dropout(call, call.out[0], call.attrs.number("p"), call.attrs.integer("key"),
                              BatchPlace::of(call.attrs)),
          x = call.in[0].as<float>(), y = call.out[0].as<float>(), n = call.out[0].size(), threads = call.threads] {
    cpu::over_elements(threads, n,
                       [&](int64_t begin, int64_t end) { drop.run(begin, x + begin, y + begin, end - begin); });
  };
}

}  // namespace

extern const CpuKernels dropout_cpu = {{"dropout", prepare_dropout}};

}  // namespace trainctl
