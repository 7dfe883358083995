// Data that is replicated on several ranks is written into a checkpoint once, and these ranks share the work.
//
// Variables that the same ranks hold are laid end to end, and each of these ranks takes an equal part of that range:
//
//   rank 0           rank 1           rank 2
//   [ w0           | w0     w1      | w1     b0 b1 ]
//
// Parts end between rows, and a small variable belongs to one rank. A sharded bucket is divided already: there the
// first of the ranks with the same shard writes it. Each server writes the shard that it holds.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/compile/lower/storage_division.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// A smaller variable is not divided.
constexpr int64_t kLeastBytes = 64 << 10;

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

StorageDivision::StorageDivision(const Graph& graph, const Plan& plan, const std::vector<BucketPlan>& buckets)
    : plan_(plan) {
  std::unordered_map<TensorId, const BucketPlan*> bucket_of;
  for (const BucketPlan& bucket : buckets)
    for (const BucketParameter& p : bucket.parameters) bucket_of[p.tensor] = &bucket;
  for (const VariablePlan& v : plan.variables) {
    const auto found = bucket_of.find(v.tensor);
    const BucketPlan* bucket = found == bucket_of.end() ? nullptr : found->second;
    const Axes replicas = v.layout.replica_axes(plan.mesh);
    Place& place = places_.emplace_back();
    if (graph.tensors[static_cast<size_t>(v.tensor)].is_base) {
      place.way = Way::base;
    } else if (bucket != nullptr && (bucket->is_served() || bucket->is_table)) {
      place.way = Way::served;
    } else if (bucket != nullptr && bucket->level > 0) {
      place = {Way::sharded, find_holders({}, without(replicas, bucket->shard_axes)), 0};
    } else {
      place.holders = find_holders(v.stages, replicas);
      int64_t& elements = holders_[place.holders].elements;
      place.begin = elements;
      elements += num_elements(v.layout.local_shape(plan.mesh, v.global_shape));
    }
  }
}

size_t StorageDivision::find_holders(const std::vector<int>& stages, const Axes& axes) {
  const auto found = std::find_if(holders_.begin(), holders_.end(),
                                  [&](const Holders& h) { return h.stages == stages && h.axes == axes; });
  const auto index = static_cast<size_t>(found - holders_.begin());
  if (index == holders_.size()) holders_.push_back({stages, axes, 0});
  return index;
}

/// The rank's index among the holders: stages first.
int64_t StorageDivision::index_of(const Holders& holders, const Program& program) const {
  const auto before = std::find(holders.stages.begin(), holders.stages.end(), program.stage) - holders.stages.begin();
  return (holders.stages.empty() ? 0 : before * plan_.mesh.ways(holders.axes)) +
         plan_.mesh.index(program.rank_in_stage, holders.axes);
}

void StorageDivision::divide(const std::vector<const VariablePlan*>& plans, Program& program) const {
  std::vector<int64_t> indices(holders_.size(), -1);
  for (size_t i = 0; i < plans.size(); ++i) {
    Variable& variable = program.variables[i];
    const Place& place = places_[static_cast<size_t>(plans[i] - plan_.variables.data())];
    if (place.way == Way::base) continue;
    if (place.way == Way::served) {
      variable.own_elements = program.server >= 0 ? num_elements(variable.shape) : 0;
      continue;
    }
    const Holders& holders = holders_[place.holders];
    int64_t& index = indices[place.holders];
    if (index < 0) index = index_of(holders, program);
    if (place.way == Way::sharded) {
      variable.own_elements = index == 0 ? num_elements(variable.shape) : 0;
      continue;
    }
    const int64_t ranks = static_cast<int64_t>(holders.stages.size()) * plan_.mesh.ways(holders.axes);
    variable.own_first = at_row(variable, holders.elements * index / ranks - place.begin);
    variable.own_elements = at_row(variable, holders.elements * (index + 1) / ranks - place.begin) - variable.own_first;
  }
}

void divide_storage(Compiler& c) {
  StorageDivision(c.graph, c.plan, c.bucket_plans).divide(c.variable_plans, c.program);
}

}  // namespace trainctl
