// y[t, :] = table[ids[t], :]. If the table is cut by rows, rows of other ranks give 0, and the ranks' sum is y.
// Backward: dtable[ids[t], :] += dy[t, :] for this rank's rows.
#include <algorithm>
#include <cstring>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

/// The rows of the table that this rank holds; local() returns -1 for a row of another rank.
struct Rows {
  int64_t first, count, vocab;

  void check_id(int32_t id) const {
    if (id < 0 || id >= vocab) {
      throw EnvError("embedding: the data contains id " + std::to_string(id) + ", but the table has rows 0 to " +
                     std::to_string(vocab - 1) + "\n  set vocab to a number greater than the largest id");
    }
  }
  int64_t local(int32_t id) const {
    const int64_t row = id - first;
    return row >= 0 && row < count ? row : -1;
  }
};

Rows rows_of(const TensorArg& table) { return {table.offset[0], table.shape[0], table.global_shape[0]}; }

CpuKernel prepare_embedding(const KernelCall& call) {
  const TensorArg& table = call.in[1];
  return [rows = rows_of(table), d = table.shape[1], n = call.in[0].size(), ids = call.in[0].as<int32_t>(),
          from = table.as<float>(), y = call.out[0].as<float>(), threads = call.threads] {
    for (int64_t t = 0; t < n; ++t) rows.check_id(ids[t]);
    cpu::each_row(threads, n, d, [&](int64_t t) {
      const int64_t row = rows.local(ids[t]);
      if (row < 0) {
        std::fill_n(y + t * d, d, 0.0f);
      } else {
        std::memcpy(y + t * d, from + row * d, static_cast<size_t>(d) * sizeof(float));
      }
    });
  };
}

CpuKernel prepare_embedding_grad(const KernelCall& call) {
  const TensorArg& table = call.out[0];
  return [rows = rows_of(table), d = table.shape[1], n = call.in[1].size(), dy = call.in[0].as<float>(),
          ids = call.in[1].as<int32_t>(), to = table.as<float>(), add = table.accumulate] {
    for (int64_t t = 0; t < n; ++t) rows.check_id(ids[t]);
    if (!add) std::fill_n(to, rows.count * d, 0.0f);
    for (int64_t t = 0; t < n; ++t) {
      const int64_t row = rows.local(ids[t]);
      if (row < 0) continue;
      for (int64_t i = 0; i < d; ++i) to[row * d + i] += dy[t * d + i];
    }
  };
}

}  // namespace

extern const CpuKernels embedding_cpu = {{"embedding", prepare_embedding}, {"embedding_grad", prepare_embedding_grad}};

}  // namespace trainctl
