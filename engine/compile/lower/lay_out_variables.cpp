// The persistent half of the arena: parameters in buckets, states, gradients, optimizer, scalars.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/compile/fp8_states.h"
#include "engine/compile/last_norms.h"
#include "engine/compile/lower/averaged_states.h"
#include "engine/compile/lower/packed_states.h"
#include "engine/compile/passes.h"
#include "engine/ops/kernel.h"
#include "engine/ops/pack_states/packed_state.h"
#include "engine/plan/served.h"

namespace trainctl {
namespace {

constexpr int64_t kVariableFloat = byte_size(DType::f32);

/// Returns the local shard of a variable on this rank, without an offset in memory.
Variable variable_of(const Compiler& c, const VariablePlan& plan) {
  const Tensor& tensor = c.graph.tensors[plan.tensor];
  Variable v;
  v.name = tensor.name;
  v.kind = tensor.kind;
  v.is_cache = tensor.is_cache;
  v.init = tensor.init;
  v.packing = tensor.packing;
  if (v.is_cache || v.packing != Packing::none) v.dtype = tensor.dtype;
  v.global_shape = plan.global_shape;
  v.shape = plan.layout.local_shape(c.plan.mesh, plan.global_shape);
  v.offset = plan.layout.local_offset(c.plan.mesh, plan.global_shape, c.rank_in_stage);
  check(!c.plan.hybrid() || v.shape == tensor.shape, "in hybrid_parallel a variable's part has the graph's shape");
  return v;
}

/// Groups that sum gradients, by their stages and axes.
using ReduceGroups = std::map<std::pair<std::vector<int>, Axes>, int>;

/// Returns the index of the group that sums the gradients of the bucket, or -1 if no other rank takes part.
int reduce_group_of(Compiler& c, const BucketPlan& plan, ReduceGroups& known) {
  const auto [group, fresh] = known.try_emplace({plan.stages, plan.sum_axes}, -1);
  if (!fresh) return group->second;
  const std::vector<int> ranks = plan.reduce_ranks(c.plan.mesh, c.rank_in_stage);
  if (ranks.size() > 1) group->second = c.group_of(ranks);
  return group->second;
}

/// The bucket of this rank without its memory: shards, groups and types.
Bucket bucket_of(Compiler& c, const BucketPlan& plan, ReduceGroups& reduce_groups) {
  Bucket b;
  b.name = plan.name;
  b.elements = plan.elements;
  b.level = plan.level;
  b.pieces = plan.pieces;
  b.gradient_type = plan.type;
  b.kept_type = plan.kept;
  if (c.plan.copies_weights()) b.compute_type = c.plan.compute_type();
  b.table = plan.is_table;
  if (plan.is_served()) {
    b.served = true;
    b.pushers = static_cast<int>(plan.pushers(c.plan.mesh).size());
    if (!c.is_server()) return b;
    b.level = 3;
    b.kept_type = DType::f32;  // the gradients of all workers add up there
    b.shards = static_cast<int>(plan.servers.size());
    b.shard = plan.part_of_server(c.server);
    return b;
  }
  if (plan.updated && !plan.is_summed_twice()) b.reduce_group = reduce_group_of(c, plan, reduce_groups);
  if (plan.level == 0) return b;
  b.shard_group = b.reduce_group;
  b.shards = plan.num_shards(c.plan.mesh);
  b.shard = plan.shard_index(c.plan.mesh, c.stage, c.rank_in_stage);
  if (!plan.is_summed_twice()) return b;
  b.shard_group = c.group_of(plan.shard_ranks(c.plan.mesh, c.stage, c.rank_in_stage));
  b.reduce_group = c.group_of(plan.across_ranks(c.plan.mesh, c.stage, c.rank_in_stage));
  return b;
}

/// Returns true if this rank updates the bucket. A bucket that a parameter server owns is updated by the server only.
bool updates(const Compiler& c, const BucketPlan& plan) {
  return plan.updated && !plan.is_table && plan.is_served() == c.is_server();
}

/// In bf16 and fp16 kernels read a copy. The f32 weights serve only the update, so each rank keeps just those that it
/// updates. At level 3 the copy exists only while it is gathered, unless there are no f32 weights to make it from.
void add_weights(Compiler& c, const Bucket& bucket, RankBucket& r) {
  r.compute_type = bucket.compute_type;
  const bool copied = c.plan.copies_weights(), updated = updates(c, *r.plan) && c.keeps_training_state;
  r.rounded_by_gathers = copied && updated && bucket.level == 3 && !bucket.served;
  if (copied && !r.rounded_by_gathers) {
    const int64_t elements = bucket.level == 3 ? bucket.shard_elements() : bucket.elements;
    r.compute = c.new_buffer(BufferKind::weights, elements * byte_size(r.compute_type));
    if (!updated) return;
  }
  const int64_t elements = r.weights_are_cut() ? bucket.shard_elements() : bucket.elements;
  r.weights = c.new_buffer(copied ? BufferKind::master : BufferKind::weights, elements * kVariableFloat);
}

/// Gradients keep their memory if something reads them after the step (histograms, servers), or if they rely on padding
/// that no instruction writes. From level 2 on reductions write the whole shard, padding included. The rule depends on
/// the plan alone, so that evaluations have the same layout.
bool gradients_share_memory(const Compiler& c, const BucketPlan& plan) {
  if (plan.is_table || plan.is_served() || c.plan.numerics.keeps_gradients) return false;
  return plan.level >= 2 || plan.padding().empty();
}

/// Records a state for checkpoints that all ranks of `stages` have; the first of these ranks writes it.
void note_whole_state(Compiler& c, const std::vector<int>& stages, const std::string& parameter,
                      const std::string& slot, const Shape& shape, BufferId buffer, int64_t at) {
  OtherState state{slot, {}};
  state.variable.name = parameter;
  state.variable.kind = TensorKind::state;
  state.variable.shape = state.variable.global_shape = shape;
  state.variable.offset = Shape(shape.size(), 0);
  if (c.stage == stages.front() && c.rank_in_stage == 0) state.variable.own_elements = num_elements(shape);
  c.program.other_states.push_back(std::move(state));
  c.other_states.emplace_back(buffer, at);
}

/// Adds the states whose shape differs from the parameter's (ParameterSums::states), for all parameters of the bucket.
void add_other_states(Compiler& c, const BucketPlan& plan, RankBucket& r) {
  const ParameterSums* sums = c.optimizer_of(plan).def.sums;
  if (sums == nullptr || sums->states == nullptr || !updates(c, plan)) return;
  r.other_states = c.new_buffer(BufferKind::optimizer, 0);
  int64_t at = 0;
  for (const BucketParameter& p : plan.parameters) {
    const Tensor& tensor = c.trained.tensors[static_cast<size_t>(p.tensor)];
    for (const auto& [slot, shape] : sums->states(tensor.shape)) {
      if (c.trains()) note_whole_state(c, plan.stages, tensor.name, slot, shape, r.other_states, at);
      at += num_elements(shape) * kVariableFloat;
    }
  }
  c.buffers[static_cast<size_t>(r.other_states)].bytes = at;
}

/// Adds a bucket to the program, with buffers for its weights and, in a training, for gradients, optimizer states and
/// averages.
void add_bucket(Compiler& c, const BucketPlan& plan, ReduceGroups& reduce_groups) {
  Bucket bucket = bucket_of(c, plan, reduce_groups);
  const int64_t whole = bucket.elements * kVariableFloat, shard = whole / bucket.shards;
  RankBucket r;
  r.plan = &plan;
  r.level = bucket.level;
  add_weights(c, bucket, r);
  if (plan.updated && c.keeps_training_state) {
    bucket.gradients_share_memory = gradients_share_memory(c, plan);
    RankBucket kept = r;
    const int64_t bytes = (bucket.level >= 2 ? bucket.shard_elements() : bucket.elements) * byte_size(bucket.kept_type);
    kept.gradients = c.new_buffer(BufferKind::gradients, bytes);
    if (plan.accumulates_separately && bucket.level < 2) kept.sums = c.new_buffer(BufferKind::gradients, whole);
    const std::vector<std::string> states =
        updates(c, plan) ? c.optimizer_of(plan).states() : std::vector<std::string>{};
    const bool has_codes = plan.state_type == StateType::int8;
    const int64_t own = bucket.level >= 1 ? bucket.shard_elements() : bucket.elements;
    if (plan.state_type == StateType::bf16) bucket.state_type = DType::bf16;
    for (const std::string& state : states) {
      kept.optimizer.push_back(
          c.new_buffer(BufferKind::optimizer, has_codes ? own : own * byte_size(bucket.state_type)));
      // Averages take the place of weights in evaluations, so they stay on the device.
      c.buffers[static_cast<size_t>(kept.optimizer.back())].is_offloaded =
          c.plan.offloads_optimizer && state != kAverageSlot;
    }
    for (size_t s = 0; has_codes && s < states.size(); ++s)
      kept.scales.push_back(c.new_buffer(BufferKind::optimizer, own / kStateBlock * kVariableFloat));
    const auto computed = std::find(states.begin(), states.end(), kAverageSlot);  // computed by the update
    if (computed != states.end())
      kept.average = kept.optimizer[static_cast<size_t>(computed - states.begin())];
    else if ((c.plan.numerics.optimizer.average || c.plan.has_replicas()) && updates(c, plan))
      kept.average = c.new_buffer(BufferKind::optimizer, bucket.level >= 1 ? shard : whole);
    if (c.plan.has_replicas() && updates(c, plan))
      kept.outer_momentum = c.new_buffer(BufferKind::optimizer, bucket.level >= 1 ? shard : whole);
    add_other_states(c, plan, kept);
    if (c.trains()) {  // an evaluation does not change them
      r = std::move(kept);
      bucket.optimizer_states = states;
      if (has_codes) record_codes(c, plan, bucket, r, states);
    } else if (c.only != EvaluationOf::Only::none) {
      r.average = kept.average;
      r.outer_momentum = kept.outer_momentum;
      // An evaluation must place the optimizer's memory at the same offset as the training. In the training, gradients
      // that share memory are placed later, so here they get no bytes.
      for (const BufferId shared : {kept.gradients, kept.sums})
        if (bucket.gradients_share_memory && shared >= 0) c.buffers[static_cast<size_t>(shared)].bytes = 0;
    }
  }
  c.program.buckets.push_back(std::move(bucket));
  c.buckets.push_back(std::move(r));
}

constexpr int64_t kStateAlignment = 64;

void no_state(Compiler& c) {
  c.states.push_back(-1);
  c.state_offsets.push_back(0);
}

/// Adds a buffer for a state of the network, such as a running mean. States that are averaged over the same ranks share
/// one buffer, so that one call averages all of them.
void add_state(Compiler& c, int64_t bytes, const Axes& averaged, std::map<Axes, BufferId>& shared) {
  if (averaged.empty() || bytes % kStateAlignment != 0) {
    c.states.push_back(c.new_buffer(BufferKind::state, bytes));
    c.state_offsets.push_back(0);
    return;
  }
  const auto [found, is_new] = shared.try_emplace(averaged, -1);
  if (is_new) found->second = c.new_buffer(BufferKind::state, 0);
  int64_t& used = c.buffers[static_cast<size_t>(found->second)].bytes;
  c.states.push_back(found->second);
  c.state_offsets.push_back(used);
  used += bytes;
}

/// Adds the states of delayed fp8 scales, one after the other.
void add_fp8_states(Compiler& c) {
  if (!c.keeps_training_state || c.is_server()) return;
  BufferId buffer = -1;
  int64_t at = 0;
  for (const Fp8State& state : fp8_states(c.trained, c.plan)) {
    if (!std::binary_search(state.stages.begin(), state.stages.end(), c.stage)) continue;
    if (buffer < 0) buffer = c.new_buffer(BufferKind::optimizer, 0);
    const Shape shape = fp8_state_shape(c.plan);
    if (c.trains())
      note_whole_state(c, state.stages, c.trained.tensors[static_cast<size_t>(state.tensor)].name,
                       std::string(kFp8Slot), shape, buffer, at);
    at += round_up(num_elements(shape) * kVariableFloat, kStateAlignment);
  }
  if (buffer >= 0) c.buffers[static_cast<size_t>(buffer)].bytes = at;
}

}  // namespace

void lay_out_variables(Compiler& c) {
  if (c.bucket_plans.empty()) c.bucket_plans = plan_buckets(c.trained, c.plan);
  ReduceGroups reduce_groups;
  for (const BucketPlan& plan : c.bucket_plans) {
    if (c.has(plan)) add_bucket(c, plan, reduce_groups);
  }
  std::unordered_map<TensorId, std::pair<int, int64_t>> places;  // of parameters: bucket, first element in it
  for (size_t b = 0; b < c.buckets.size(); ++b) {
    for (const BucketParameter& p : c.buckets[b].plan->parameters)
      places[p.tensor] = {static_cast<int>(b), p.first_element};
  }
  const std::vector<Axes> averaged = axes_of_averaged_states(c.trained, c.plan);
  std::map<Axes, BufferId> shared;
  for (const VariablePlan& plan : c.plan.variables) {
    const auto place = places.find(plan.tensor);
    const bool in_stage = std::find(plan.stages.begin(), plan.stages.end(), c.stage) != plan.stages.end();
    if (c.is_server() ? place == places.end() : !in_stage) continue;
    Variable v = variable_of(c, plan);
    if (place != places.end()) std::tie(v.bucket, v.bucket_element) = place->second;
    c.variables[static_cast<size_t>(plan.tensor)] = static_cast<int>(c.program.variables.size());
    const int64_t bytes = num_elements(v.shape) * byte_size(v.dtype);
    if (v.kind == TensorKind::state || v.packing != Packing::none)
      add_state(c, bytes, averaged[static_cast<size_t>(plan.tensor)], shared);
    else
      no_state(c);
    c.program.variables.push_back(std::move(v));
    c.variable_plans.push_back(&plan);
  }
  if (const auto& spike = c.plan.numerics.optimizer.on_spike; spike && c.keeps_training_state && c.trained.trains()) {
    const Shape shape = {2 + spike->window};
    const BufferId norms = c.new_buffer(BufferKind::optimizer, num_elements(shape) * kVariableFloat);
    if (c.trains()) {
      c.norms = norms;
      note_whole_state(c, {0}, std::string(kGradientNorms), std::string(kNormsSlot), shape, norms, 0);
    }
  }
  add_fp8_states(c);
  c.scalars = c.new_buffer(BufferKind::scalars, sizeof(StepScalars));
  const bool serves_tables = c.is_server() && serves_tables_alone(c.plan);  // it takes no part in the step
  if (c.has_loss() && !serves_tables) {
    const int64_t numbers = c.num_reported() + (c.reports_skips() ? 1 : 0) + (c.reports_overflows() ? 1 : 0);
    c.loss = c.new_buffer(BufferKind::scalars, numbers * kVariableFloat);
  }
}

}  // namespace trainctl
