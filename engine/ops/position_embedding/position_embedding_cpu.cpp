// y[b, t, :] = x[b, t, :] + table[t, :]; dtable[t, :] = sum over b of dy[b, t, :], 0 for positions that do not occur.
#include <algorithm>

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastPositionElements = 32768;  ///< that are worth waking a thread for

/// x as [batches, count positions, d]; `first` is the first one's row of the table.
struct Positions {
  int64_t batches, count, first, d;

  explicit Positions(const TensorArg& x)
      : count(x.shape[x.shape.size() - 2]), first(x.offset[x.shape.size() - 2]), d(x.shape.back()) {
    batches = count * d == 0 ? 0 : x.size() / (count * d);
  }
};

/// With the position of the first row of each sample.
CpuKernel prepare_positions_from(const KernelCall& call) {
  return [p = Positions(call.in[0]), x = call.in[0].as<float>(), table = call.in[1].as<float>(),
          starts = call.in[2].as<int32_t>(), last = call.in[1].shape[0] - 1, y = call.out[0].as<float>()] {
    for (int64_t row = 0; row < p.batches * p.count; ++row) {
      const int64_t position = std::min(last, starts[row / p.count] + p.first + row % p.count);
      for (int64_t j = 0; j < p.d; ++j) y[row * p.d + j] = x[row * p.d + j] + table[position * p.d + j];
    }
  };
}

RowOrder order_of(const KernelCall& call) {
  const TensorArg& x = call.in[0];
  return RowOrder::of(call.attrs, x.global_shape[x.shape.size() - 2]);
}

/// Rows that are not stored by position.
CpuKernel prepare_ordered_positions(const KernelCall& call, const RowOrder& order) {
  return [order, p = Positions(call.in[0]), x = call.in[0].as<float>(), table = call.in[1].as<float>(),
          y = call.out[0].as<float>()] {
    for (int64_t row = 0; row < p.batches * p.count; ++row) {
      const float* from = table + order.position(p.first + row % p.count) * p.d;
      for (int64_t j = 0; j < p.d; ++j) y[row * p.d + j] = x[row * p.d + j] + from[j];
    }
  };
}

CpuKernel prepare_ordered_positions_grad(const KernelCall& call, const RowOrder& order) {
  const TensorArg& table = call.out[0];
  return [order, p = Positions(call.in[0]), dy = call.in[0].as<float>(), to = table.as<float>(), all = table.size(),
          add = table.accumulate] {
    if (!add) std::fill_n(to, all, 0.0f);
    for (int64_t row = 0; row < p.count; ++row) {
      float* const sum = to + order.position(p.first + row) * p.d;
      for (int64_t j = 0; j < p.d; ++j) {
        double total = sum[j];
        for (int64_t b = 0; b < p.batches; ++b) total += dy[(b * p.count + row) * p.d + j];
        sum[j] = static_cast<float>(total);
      }
    }
  };
}

CpuKernel prepare_position_embedding(const KernelCall& call) {
  if (call.in.size() == 3) return prepare_positions_from(call);
  if (const RowOrder order = order_of(call); order.piece > 0) return prepare_ordered_positions(call, order);
  return [p = Positions(call.in[0]), x = call.in[0].as<float>(), table = call.in[1].as<float>(),
          y = call.out[0].as<float>(), threads = call.threads] {
    const float* rows = table + p.first * p.d;
    const int64_t sample = p.count * p.d;
    cpu::over_range(threads, p.batches * p.count, kLeastPositionElements / std::max<int64_t>(1, p.d),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin * p.d; i < end * p.d;) {
                        const int64_t at = i % sample, n = std::min(sample - at, end * p.d - i);
                        for (int64_t j = 0; j < n; ++j) y[i + j] = x[i + j] + rows[at + j];
                        i += n;
                      }
                    });
  };
}

CpuKernel prepare_position_embedding_grad(const KernelCall& call) {
  if (const RowOrder order = order_of(call); order.piece > 0) return prepare_ordered_positions_grad(call, order);
  const TensorArg& table = call.out[0];
  return [p = Positions(call.in[0]), dy = call.in[0].as<float>(), to = table.as<float>(), all = table.shape[0],
          add = table.accumulate, threads = call.threads] {
    if (!add) {
      std::fill_n(to, p.first * p.d, 0.0f);
      std::fill(to + (p.first + p.count) * p.d, to + all * p.d, 0.0f);
    }
    const int64_t sample = p.count * p.d, least = kLeastPositionElements / std::max<int64_t>(1, p.batches);
    cpu::over_range(threads, sample, least, [&](int64_t begin, int64_t end) {
      constexpr int64_t kTile = 256;
      for (int64_t first = begin; first < end; first += kTile) {
        const int64_t count = std::min(kTile, end - first);
        double total[kTile] = {};
        for (int64_t b = 0; b < p.batches; ++b) {
          const float* from = dy + b * sample + first;
          for (int64_t i = 0; i < count; ++i) total[i] += from[i];
        }
        float* row = to + p.first * p.d + first;
        for (int64_t i = 0; i < count; ++i) row[i] = static_cast<float>((add ? row[i] : 0.0) + total[i]);
      }
    });
  };
}

}  // namespace

extern const CpuKernels position_embedding_cpu = {{"position_embedding", prepare_position_embedding},
                                                  {"position_embedding_grad", prepare_position_embedding_grad}};

}  // namespace trainctl
