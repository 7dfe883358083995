// Sums the gradients of a parameter's uses in all micro-batches into one reduced range per bucket.
//
//   levels 0, 1   contributions add up in the bucket's range. After the step's last one: all_reduce, or at level 1
//                 reduce_scatter, which leaves each rank the sum of its own block, in place, for its shard's update
//   levels 2, 3   contributions of a micro-batch add up in a short-lived range; reduce_scatter after
//                 each micro-batch; the shards add up
//
// With optimizer_shard.within_host the reduce_scatter is among the ranks of a host, and once a shard has all of the
// step's contributions, an all_reduce sums it over hosts:
//
//   level 1       R S             R reduce_scatter within hosts, S all_reduce of a shard over hosts, + adds up
//   levels 2, 3   R R+ R+ S       over the micro-batches
//
// Ranges that are reduced may be bf16. Nothing adds up in a bf16 range: a single contribution is written there
// directly, several add up in an f32 range that is then rounded, and shards of several micro-batches add up in f32.
#include <algorithm>
#include <tuple>

#include "engine/base/error.h"
#include "engine/compile/lower/lowering.h"
#include "engine/ops/op_def.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

const BucketPlan& plan_of(const Lowering& l, int bucket) { return *l.c.buckets[bucket].plan; }
bool is_per_micro_batch(const Lowering& l, int bucket) { return plan_of(l, bucket).level >= 2; }
/// The type of the range that contributions are written to.
DType target_type(const BucketPlan& plan) { return plan.accumulates_separately ? DType::f32 : plan.type; }

void zero(Lowering& l, const std::string& name, const View& view) {
  l.emit_kernel("zero " + name, zero_kernel, {}, {}, {view});
}

/// The range that contributions of this task are written to.
GradientRange& target(Lowering& l, int bucket) {
  GradientState& state = l.gradients[bucket];
  if (!is_per_micro_batch(l, bucket)) return state.of_step;
  GradientRange& range = state.of_micro_batch[l.task.micro_batch];
  range.written.resize(plan_of(l, bucket).parameters.size());
  return range;
}

/// Returns the buffer of the range that contributions of this task are written to. If the buffer is new, its padding is
/// zeroed here, because no kernel writes the padding.
BufferId target_buffer(Lowering& l, int bucket) {
  GradientRange& range = target(l, bucket);
  if (range.buffer >= 0) return range.buffer;
  const BucketPlan& plan = plan_of(l, bucket);
  const DType type = target_type(plan);
  range.buffer = l.c.new_buffer(BufferKind::scratch, plan.elements * byte_size(type));
  for (const auto& [begin, end] : plan.padding())
    zero(l, "padding of grad." + plan.name, l.c.flat(range.buffer, begin, end - begin, "grad." + plan.name, type));
  return range.buffer;
}

/// Returns the range of a parameter's gradient as the output of a kernel. The first contribution overwrites the range;
/// all later ones are added to it (Operand::accumulate).
View parameter_range(Lowering& l, int bucket, int parameter) {
  const BucketParameter& p = plan_of(l, bucket).parameters[parameter];
  View view{target_buffer(l, bucket), l.c.operand(p.tensor, p.gradient_layout)};
  view.operand.dtype = target_type(plan_of(l, bucket));
  view.operand.offset = p.first_element * byte_size(view.operand.dtype);
  view.operand.tensor = "grad." + view.operand.tensor;
  view.operand.accumulate = target(l, bucket).written[parameter];
  return view;
}

void add_gradient(Lowering& l, TensorId gradient, int bucket, int parameter) {
  const BucketParameter& p = plan_of(l, bucket).parameters[parameter];
  const View from = bring(l, gradient, l.id(p.gradient_layout));
  const View to = parameter_range(l, bucket, parameter);
  target(l, bucket).written[parameter] = true;
  if (to.operand.accumulate)
    return l.emit_kernel("accumulate " + to.operand.tensor, accumulate_kernel, {}, {from}, {to});
  l.emit_kernel("copy " + to.operand.tensor, copy_slice_kernel, copy_of(num_elements(from.operand.shape)), {from},
                {to});
}

/// Zeroes the gradients of parameters to which no node of this stage contributes.
void fill_unwritten(Lowering& l, int bucket) {
  std::vector<bool>& written = target(l, bucket).written;
  for (size_t p = 0; p < written.size(); ++p) {
    if (written[p]) continue;
    const View view = parameter_range(l, bucket, static_cast<int>(p));
    zero(l, view.operand.tensor, view);
    written[p] = true;
  }
}

/// The range that is summed over ranks: the target range itself, or its rounded copy.
BufferId summed_range(Lowering& l, int bucket) {
  const BucketPlan& plan = plan_of(l, bucket);
  const BufferId sums = target_buffer(l, bucket);
  if (!plan.accumulates_separately) return sums;
  const bool of_task = is_per_micro_batch(l, bucket);
  const BufferId range = of_task ? l.c.new_buffer(BufferKind::scratch, plan.elements * byte_size(plan.type))
                                 : l.c.buckets[bucket].gradients;
  const std::string name = "grad." + plan.name;
  Instruction i;
  i.name = "round " + name;
  i.op = copy_slice_kernel.name;
  i.attrs = copy_of(plan.elements);
  i.phase = Phase::backward;
  i.micro_batch = of_task ? l.task.micro_batch : -1;
  l.c.emit(std::move(i), {l.c.flat(sums, 0, plan.elements, name)},
           {l.c.flat(range, 0, plan.elements, name, plan.type)});
  return range;
}

/// Emits the all_reduce that sums this rank's shard of the gradients over hosts. `shard` is the range that the update
/// reads.
void sum_over_hosts(Lowering& l, int bucket, const std::string& name, const View& shard) {
  l.gradients[bucket].last_reduction = l.c.code.size();
  Instruction i;
  i.opcode = Opcode::collective;
  i.collective = Collective::all_reduce;
  i.name = "all_reduce " + name + " over hosts";
  i.group = l.c.program.buckets[bucket].reduce_group;
  i.purpose = Purpose::gradient;
  i.phase = Phase::backward;
  View sum = shard;
  sum.operand.accumulate = false;
  l.c.emit(std::move(i), {sum}, {sum});
}

/// Emits the sum of a bucket's gradients over its ranks, one collective per piece, or the push to its server.
void reduce_once(Lowering& l, int bucket) {
  const Bucket& b = l.c.program.buckets[bucket];
  const BufferId range = summed_range(l, bucket);
  if (b.served) return push(l, bucket, range);
  if (b.reduce_group < 0) return;
  for (int p = 0; p < b.pieces; ++p) {
    const Bucket::Piece piece = b.piece(p);
    const std::string name = "grad." + piece.name;
    l.gradients[bucket].last_reduction = l.c.code.size();
    Instruction i;
    i.opcode = Opcode::collective;
    i.collective = b.level == 0 ? Collective::all_reduce : Collective::reduce_scatter;
    i.name = std::string(to_string(i.collective)) + " " + name;
    i.group = b.level == 0 ? b.reduce_group : b.shard_group;
    i.purpose = Purpose::gradient;
    i.phase = Phase::backward;
    const View shard = own_shard(l, bucket, piece, range, name, b.gradient_type);
    l.c.emit(std::move(i), {l.c.flat(range, piece.first, piece.elements, name, b.gradient_type)}, {shard});
    if (plan_of(l, bucket).is_summed_twice()) sum_over_hosts(l, bucket, name, shard);
  }
}

/// Emits the reduce_scatter of one micro-batch's gradients. The shard of the first micro-batch is written directly to
/// the range in which shards add up, if the types match. The shard of a later micro-batch stays in the range of that
/// micro-batch, at this rank's block. It is added to the sum only after the next reduction has been issued, so that the
/// instructions in between do not wait for this reduction. `is_last`: no micro-batch comes after this one.
void reduce_scatter(Lowering& l, int bucket, bool is_last) {
  GradientState& state = l.gradients[bucket];
  const Bucket& b = l.c.program.buckets[bucket];
  const BufferId range = summed_range(l, bucket);
  const bool is_kept = !state.shard_written && b.kept_type == b.gradient_type;
  for (int p = 0; p < b.pieces; ++p) {
    const Bucket::Piece piece = b.piece(p);
    const std::string name = "grad." + piece.name;
    const View whole = l.c.flat(range, piece.first, piece.elements, name, b.gradient_type);
    const View block = own_shard(l, bucket, piece, range, name, b.gradient_type);
    View shard = l.c.flat(l.c.buckets[bucket].gradients, piece.kept_first, piece.own_elements, name, b.kept_type);
    state.last_reduction = l.c.code.size();
    l.emit_collective("reduce_scatter " + name, Collective::reduce_scatter, b.shard_group, whole,
                      is_kept ? shard : block, Purpose::gradient);
    add_up_shards(l);
    const int sums = is_last && plan_of(l, bucket).is_summed_twice() ? bucket : -1;
    if (!is_kept) {
      shard.operand.accumulate = state.shard_written;
      l.scattered.push_back({block, shard, l.task.micro_batch, sums});
    } else if (sums >= 0) {
      sum_over_hosts(l, bucket, name, shard);
    }
  }
  state.shard_written = true;
  state.of_micro_batch.erase(l.task.micro_batch);
}

bool spans_stages(const Lowering& l, int bucket) { return plan_of(l, bucket).stages.size() > 1; }

/// True if `a` runs before `b` in each micro-batch. Tasks that compute only weight gradients come last. The backward
/// pass goes from the last chunk to the first.
bool runs_before(const Lowering& l, NodeId a, NodeId b) {
  const auto order = [&](NodeId n) {
    return std::tuple(l.tasks_of_nodes[n], -l.c.plan.virtual_stage_of(l.c.graph.nodes[n]), n);
  };
  return order(a) < order(b);
}

}  // namespace

/// Records for each gradient of the graph the parameter and bucket to which it is added, and for each bucket the node
/// that makes the last contribution.
void start_gradients(Lowering& l) {
  l.gradients.resize(l.c.buckets.size());
  l.gathered.assign(l.c.buckets.size(), -1);
  if (!l.c.trains()) return;
  for (size_t b = 0; b < l.c.buckets.size(); ++b) {
    const BucketPlan& plan = *l.c.buckets[b].plan;
    GradientState& state = l.gradients[b];
    state.of_step.buffer = plan.accumulates_separately ? l.c.buckets[b].sums : l.c.buckets[b].gradients;
    state.of_step.written.assign(plan.parameters.size(), false);
    for (size_t p = 0; p < plan.parameters.size(); ++p) {
      for (TensorId gradient : plan.parameters[p].gradients) {
        const NodeId producer = l.c.graph.tensors[gradient].producer;
        if (l.c.plan.stage_of(l.c.graph.nodes[producer]) != l.c.stage) continue;
        l.destinations.emplace(gradient, std::pair(static_cast<int>(b), static_cast<int>(p)));
        if (state.last_node < 0 || runs_before(l, state.last_node, producer)) state.last_node = producer;
      }
    }
    if (state.last_node >= 0) l.finished_by.emplace(state.last_node, static_cast<int>(b));
  }
}

std::optional<View> gradient_target(Lowering& l, NodeId node, int o) {
  const Node& n = l.c.graph.nodes[node];
  const TensorId tensor = n.outputs[o];
  if (l.destinations.count(tensor) != 1 || l.num_consumers[tensor] > 0 || l.printed[tensor]) return std::nullopt;
  const auto [bucket, parameter] = l.destinations.find(tensor)->second;
  const bool as_it_is =
      l.c.plan.hybrid() || l.id(plan_of(l, bucket).parameters[parameter].gradient_layout) == l.node_outputs[node][o];
  const bool adds = (get_op(n.op).kernel.accumulates >> o & 1u) != 0;
  if (!as_it_is || (target(l, bucket).written[parameter] && !adds)) return std::nullopt;
  View view = parameter_range(l, bucket, parameter);
  target(l, bucket).written[parameter] = true;
  return view;
}

void contribute(Lowering& l, NodeId node, const std::vector<bool>& direct) {
  const std::vector<TensorId>& outputs = l.c.graph.nodes[node].outputs;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (direct[o]) continue;
    const auto [begin, end] = l.destinations.equal_range(outputs[o]);
    for (auto it = begin; it != end; ++it) add_gradient(l, outputs[o], it->second.first, it->second.second);
  }
}

void reduce_finished_buckets(Lowering& l, NodeId node) {
  const auto [begin, end] = l.finished_by.equal_range(node);
  for (auto it = begin; it != end; ++it) {
    const int b = it->second;
    if (spans_stages(l, b)) continue;
    if (is_per_micro_batch(l, b)) {
      fill_unwritten(l, b);
      reduce_scatter(l, b, l.last_of_kind);
    } else if (l.last_of_kind) {
      fill_unwritten(l, b);
      reduce_once(l, b);
      l.gradients[b].reduced = true;
    }
  }
}

void add_up_shards(Lowering& l) {
  for (const ScatteredShard& s : l.scattered) {
    Instruction i;
    const bool adds = s.to.operand.accumulate;
    i.name = (adds ? "accumulate " : "copy ") + s.to.operand.tensor;
    i.op = adds ? accumulate_kernel.name : copy_slice_kernel.name;
    if (!adds) i.attrs = copy_of(num_elements(s.to.operand.shape));
    i.phase = Phase::backward;
    i.micro_batch = s.micro_batch;
    l.c.emit(std::move(i), {s.from}, {s.to});
    if (s.summed_over_hosts >= 0) sum_over_hosts(l, s.summed_over_hosts, s.to.operand.tensor, s.to);
  }
  l.scattered.clear();
}

void reduce_remaining_buckets(Lowering& l) {
  for (int b = 0; b < static_cast<int>(l.gradients.size()); ++b) {
    if (!plan_of(l, b).updated || l.gradients[b].reduced || l.gradients[b].shard_written) continue;
    fill_unwritten(l, b);
    is_per_micro_batch(l, b) ? reduce_scatter(l, b, true) : reduce_once(l, b);
  }
}

/// The whole weights of a bucket whose shards are gathered. The first request in a task emits the gather; later ones
/// return its buffer.
View gathered_weights(Lowering& l, int bucket) {
  const Bucket& b = l.c.program.buckets[bucket];
  const std::string name = "weights." + b.name;
  const DType dtype = l.c.buckets[bucket].gathered_type();
  const bool is_new = l.gathered[bucket] < 0;
  if (is_new) l.gathered[bucket] = l.c.new_buffer(BufferKind::scratch, b.elements * byte_size(dtype));
  const View whole = l.c.flat(l.gathered[bucket], 0, b.elements, name, dtype);
  if (!is_new) return whole;
  const bool outer = l.recomputing;
  l.recomputing = false;
  View shard = l.c.flat(l.c.buckets[bucket].read(), 0, b.shard_elements(), name, l.c.buckets[bucket].read_type());
  if (l.c.buckets[bucket].rounded_by_gathers) {
    check(b.pieces == 1, "at level 3 a bucket is gathered in one piece");
    const View rounded = own_shard(l, bucket, b.piece(0), l.gathered[bucket], name, dtype);
    l.emit_kernel("round " + name, copy_slice_kernel, copy_of(b.shard_elements()), {shard}, {rounded},
                  Purpose::weights);
    shard = rounded;
  }
  l.emit_collective("all_gather " + name, Collective::all_gather, b.shard_group, shard, whole, Purpose::weights);
  l.recomputing = outer;
  return whole;
}

View own_shard(const Lowering& l, int bucket, const Bucket::Piece& piece, BufferId range, std::string name,
               DType type) {
  const View view = l.c.flat(range, piece.own_first, piece.own_elements, std::move(name), type);
  if (l.c.program.buckets[bucket].shards == 1) return view;
  return Compiler::own_part(view, OwnPart::shard, piece.elements, piece.own_first - piece.first);
}

std::pair<View, View> shard_and_whole(const Lowering& l, int bucket, const Bucket::Piece& piece) {
  const RankBucket& b = l.c.buckets[bucket];
  const std::string name = "weights." + piece.name;
  return {own_shard(l, bucket, piece, b.read(), name, b.read_type()),
          l.c.flat(b.read(), piece.first, piece.elements, name, b.read_type())};
}

void gather_in_forward(Lowering& l, int bucket, LayerId layer) {
  const Bucket& b = l.c.program.buckets[bucket];
  // f32 weights are whole when a step ends: readers take them from one rank.
  // If ranks run different micro-batches, they have no common forward task in which all of them could gather.
  const bool may_be_late =
      (b.level == 1 || b.level == 2) && l.c.buckets[bucket].weights_are_cut() && !l.c.plan.divides_micro_batches();
  if (!may_be_late || spans_stages(l, bucket) || l.task.kind != TaskKind::forward) return;
  if (l.first_layer < 0) l.first_layer = layer;
  if (layer == l.first_layer && l.c.trains()) return;
  l.c.buckets[bucket].gathered_in_forward = true;
  for (int p = 0; p < b.pieces; ++p) {
    const Bucket::Piece piece = b.piece(p);
    const auto [shard, whole] = shard_and_whole(l, bucket, piece);
    l.emit_collective("all_gather weights." + piece.name, Collective::all_gather, b.shard_group, shard, whole,
                      Purpose::weights);
  }
}

}  // namespace trainctl
