// Data that is replicated on several ranks is written into a checkpoint once, and these ranks share the work.
//
// Variables that the same ranks hold are laid end to end, and each of these ranks takes an equal part of that range:
//
//   rank 0           rank 1           rank 2
//   [ w0           | w0     w1      | w1     b0 b1 ]
//
// Parts end between rows, and a small variable is one rank's alone. A sharded bucket is divided already: there the
// first of the ranks with the same shard writes it. Each server writes the shard that it holds.
#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// A smaller variable is not divided.
constexpr int64_t kLeastBytes = 64 << 10;

/// Where variables are that the same ranks hold.
using Holders = std::pair<std::vector<int>, Axes>;

int64_t local_elements(const Compiler& c, const VariablePlan& v) {
  return num_elements(v.layout.local_shape(c.plan.mesh, v.global_shape));
}

/// This rank's index among those that hold what it holds: stages first.
int64_t index_of(const Compiler& c, const VariablePlan& v, const Axes& replicas) {
  const auto before = std::find(v.stages.begin(), v.stages.end(), c.stage) - v.stages.begin();
  return before * c.plan.mesh.ways(replicas) + c.plan.mesh.index(c.rank_in_stage, replicas);
}

/// The end between two rows that is nearest below `elements` of the part.
int64_t at_row(const Variable& v, int64_t elements) {
  const int64_t all = num_elements(v.shape);
  if (elements <= 0 || elements >= all) return std::clamp<int64_t>(elements, 0, all);
  if (all * byte_size(v.dtype) < kLeastBytes) return 2 * elements < all ? 0 : all;
  int64_t row = all;
  for (const int64_t n : v.shape) {
    row /= n;
    if (n > 1) break;
  }
  return elements / row * row;
}

}  // namespace

void divide_storage(Compiler& c) {
  std::unordered_map<TensorId, const BucketPlan*> buckets;
  for (const BucketPlan& bucket : c.bucket_plans)
    for (const BucketParameter& p : bucket.parameters) buckets[p.tensor] = &bucket;
  const auto is_sharded = [&](const VariablePlan& v) {
    const auto bucket = buckets.find(v.tensor);
    return bucket != buckets.end() && bucket->second->level > 0;
  };

  const auto is_served = [&](const VariablePlan& v) {
    const auto bucket = buckets.find(v.tensor);
    return bucket != buckets.end() && (bucket->second->is_served() || bucket->second->is_table);
  };

  std::map<Holders, int64_t> totals, placed;  // elements
  for (const VariablePlan& v : c.plan.variables)
    if (!is_sharded(v) && !is_served(v)) totals[{v.stages, v.layout.replica_axes(c.plan.mesh)}] += local_elements(c, v);

  for (const VariablePlan& v : c.plan.variables) {
    const Axes replicas = v.layout.replica_axes(c.plan.mesh);
    const int index = c.variable_index(v.tensor);
    if (is_served(v)) {
      if (index < 0) continue;
      Variable& variable = c.program.variables[static_cast<size_t>(index)];
      variable.own_elements = c.is_server() ? num_elements(variable.shape) : 0;
      continue;
    }
    if (is_sharded(v)) {
      if (index < 0) continue;
      Variable& variable = c.program.variables[static_cast<size_t>(index)];
      const Axes others = without(replicas, buckets[v.tensor]->shard_axes);
      variable.own_elements = c.plan.mesh.index(c.rank_in_stage, others) == 0 ? num_elements(variable.shape) : 0;
      continue;
    }
    int64_t& begin = placed[{v.stages, replicas}];
    if (index >= 0) {
      Variable& variable = c.program.variables[static_cast<size_t>(index)];
      const auto ranks = static_cast<int64_t>(v.stages.size()) * c.plan.mesh.ways(replicas);
      const int64_t share = index_of(c, v, replicas), total = totals[{v.stages, replicas}];
      const int64_t first = at_row(variable, total * share / ranks - begin),
                    last = at_row(variable, total * (share + 1) / ranks - begin);
      variable.own_first = first;
      variable.own_elements = last - first;
    }
    begin += local_elements(c, v);
  }
}

}  // namespace trainctl
