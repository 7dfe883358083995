// Seconds of kernels and collectives under the alpha-beta model.
#include "engine/plan/cost_model.h"

#include <algorithm>
#include <bit>

namespace trainctl {

CostModel CostModel::cpu() { return {}; }

CostModel CostModel::cuda(Precision precision) {
  const double flops = precision == Precision::fp32 ? 4e13 : precision == Precision::tf32 ? 3e14 : 6e14;
  return {.flops_per_second = flops,
          .memory_bytes_per_second = 2.5e12,
          .wire_bytes_per_second = 2e11,
          .wire_latency_seconds = 6e-6};
}

double CostModel::compute_seconds(const Cost& cost) const {
  return std::max(cost.flops / flops_per_second, cost.bytes / memory_bytes_per_second);
}

int64_t wire_bytes(Collective kind, int64_t bytes, int group_size) {
  if (group_size <= 1) return 0;
  const int64_t once = bytes - (bytes + group_size - 1) / group_size;  // bytes * (group_size - 1) may be too large
  if (kind == Collective::broadcast) return bytes;
  return kind == Collective::all_reduce ? 2 * once : once;
}

// One latency for the call itself and one per round of a tree, so that one call over several axes is always cheaper
// than one call per axis.
double CostModel::collective_seconds(Collective kind, int64_t bytes, int group_size) const {
  if (group_size <= 1) return 0;
  const int rounds = std::bit_width(static_cast<unsigned>(group_size - 1));
  const int steps = 1 + (kind == Collective::all_reduce ? 2 * rounds : rounds);
  return wire_latency_seconds * steps +
         static_cast<double>(wire_bytes(kind, bytes, group_size)) / wire_bytes_per_second;
}

double CostModel::send_seconds(int64_t bytes) const {
  return wire_latency_seconds + static_cast<double>(bytes) / wire_bytes_per_second;
}

}  // namespace trainctl
