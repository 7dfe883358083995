// y[b, t, :] = x[b, t, :] + table[t, :]; dtable[t, :] = sum over b of dy[b, t, :], 0 for positions that do not occur.
#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastPositionElements = 32768;  ///< below this, waking a thread takes longer than the work

/// The sizes of x, seen as [batches, count, d], where `count` is the number of positions. `first`: the row of the table
/// of the first position.
struct Positions {
  int64_t batches, count, first, d;

  explicit Positions(const TensorArg& x)
      : count(x.shape[x.shape.size() - 2]), first(x.offset[x.shape.size() - 2]), d(x.shape.back()) {
    batches = count * d == 0 ? 0 : x.size() / (count * d);
  }
};

RowOrder order_of(const KernelCall& call) {
  const TensorArg& x = call.in[0];
  return RowOrder::of(call.attrs, x.global_shape[x.shape.size() - 2]);
}

/// The row of the table for each row of x, with a third input: documents or first positions.
struct PlacedRows {
  Positions p;
  const int32_t* places;
  bool are_starts;
  int64_t last;
  RowOrder order;

  PlacedRows(const KernelCall& call, const TensorArg& third, int64_t table_rows)
      : p(call.in[0]),
        places(third.as<int32_t>()),
        are_starts(third.shape.size() == 1),
        last(table_rows - 1),
        order(order_of(call)) {}
  int64_t operator()(int64_t row) const {
    const int64_t in_sample = order.position(p.first + row % p.count);
    return std::clamp<int64_t>(are_starts ? places[row / p.count] + in_sample : in_sample - places[row], 0, last);
  }
};

CpuKernel prepare_placed_positions(const KernelCall& call) {
  return [row_of = PlacedRows(call, call.in[2], call.in[1].shape[0]), x = call.in[0].as<float>(),
          table = call.in[1].as<float>(), y = call.out[0].as<float>(), threads = call.threads] {
    const int64_t d = row_of.p.d;
    cpu::over_range(threads, row_of.p.batches * row_of.p.count, kLeastPositionElements / std::max<int64_t>(1, d),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t row = begin; row < end; ++row) {
                        const float* from = table + row_of(row) * d;
                        for (int64_t j = 0; j < d; ++j) y[row * d + j] = x[row * d + j] + from[j];
                      }
                    });
  };
}

/// Rows of dy by position, so that each row of the table is the sum of consecutive ones, in their order.
struct RowsByPosition {
  std::vector<int64_t> begins, rows;

  RowsByPosition(int64_t positions, int64_t count)
      : begins(static_cast<size_t>(positions) + 1), rows(static_cast<size_t>(count)) {}

  void sort(const PlacedRows& row_of) {
    std::fill(begins.begin(), begins.end(), 0);
    const auto count = static_cast<int64_t>(rows.size());
    for (int64_t row = 0; row < count; ++row) ++begins[static_cast<size_t>(row_of(row))];
    std::exclusive_scan(begins.begin(), begins.end(), begins.begin(), int64_t{0});
    for (int64_t row = 0; row < count; ++row)
      rows[static_cast<size_t>(begins[static_cast<size_t>(row_of(row))]++)] = row;
    std::copy_backward(begins.begin(), begins.end() - 1, begins.end());
    begins[0] = 0;
  }
};

/// The gradient of the table where rows have positions of their own: rows are sorted by position, and each position's
/// rows are summed.
CpuKernel prepare_placed_positions_grad(const KernelCall& call) {
  const TensorArg& table = call.out[0];
  const PlacedRows row_of(call, call.in[1], table.shape[0]);
  return [row_of, dy = call.in[0].as<float>(), to = table.as<float>(), positions = table.shape[0],
          add = table.accumulate, threads = call.threads,
          by_position = RowsByPosition(table.shape[0], row_of.p.batches * row_of.p.count)]() mutable {
    by_position.sort(row_of);
    const int64_t d = row_of.p.d;
    const int64_t least = kLeastPositionElements / std::max<int64_t>(1, d);
    cpu::over_range(threads, positions, least, [&](int64_t begin, int64_t end) {
      constexpr int64_t kTile = 256;
      for (int64_t at = begin; at < end; ++at) {
        const int64_t from = by_position.begins[static_cast<size_t>(at)];
        const int64_t until = by_position.begins[static_cast<size_t>(at) + 1];
        for (int64_t first = 0; first < d; first += kTile) {
          const int64_t count = std::min(kTile, d - first);
          double total[kTile] = {};
          for (int64_t r = from; r < until; ++r) {
            const float* row = dy + by_position.rows[static_cast<size_t>(r)] * d + first;
            for (int64_t i = 0; i < count; ++i) total[i] += row[i];
          }
          float* row = to + at * d + first;
          for (int64_t i = 0; i < count; ++i) row[i] = static_cast<float>((add ? row[i] : 0.0) + total[i]);
        }
      }
    });
  };
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
  if (call.in.size() == 3) return prepare_placed_positions(call);
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
  if (call.in.size() == 2) return prepare_placed_positions_grad(call);
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
