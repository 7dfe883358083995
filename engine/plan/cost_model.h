// Costs of work on a device, as data. Collectives follow the alpha-beta model: a call of p ranks over n bytes of
// result takes alpha * steps(p) + bytes on the wire / bandwidth.
#pragma once

#include <cstdint>

#include "engine/graph/collective.h"
#include "engine/ops/op_def.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct CostModel {
  double flops_per_second = 5e10;
  double memory_bytes_per_second = 1e10;
  double wire_bytes_per_second = 5e9;
  double wire_latency_seconds = 5e-6;

  static CostModel cpu();
  static CostModel cuda(Precision precision = Precision::fp32);

  double compute_seconds(const Cost& cost) const;
  /// `bytes`: the larger side: what one rank holds before (all_reduce, reduce_scatter, all_to_all, broadcast) or
  /// after (all_gather) the call.
  double collective_seconds(Collective kind, int64_t bytes, int group_size) const;
  double send_seconds(int64_t bytes) const;
};

/// Bytes that one rank sends: all_reduce 2(p-1)/p n, all_gather, reduce_scatter and all_to_all (p-1)/p n.
int64_t wire_bytes(Collective kind, int64_t bytes, int group_size);

}  // namespace trainctl
