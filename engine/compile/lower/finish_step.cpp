// After the last task: reductions over stages, the loss, clipping, updates. Every rank issues these in the same
// order, so the collectives of every group match.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/compile/lower/lowering.h"
#include "engine/compile/lower/packed_states.h"
#include "engine/compile/rank_traits.h"
#include "engine/ops/program_kernels.h"
#include "engine/plan/served.h"

namespace trainctl {
namespace {

constexpr int64_t kFloat = byte_size(DType::f32);

/// Emits the sum of the squares of all gradients and returns a view of the result. If servers hold tables, the worker
/// sends this sum to them after the step, so the buffer is not reused.
View sum_of_squares(Lowering& l) {
  const BufferKind kind = serves_tables_alone(l.c.plan) ? BufferKind::scalars : BufferKind::scratch;
  View norm = l.c.flat(l.c.new_buffer(kind, kFloat), 0, 1, "clip_norm");
  for (size_t b = 0; b < l.c.buckets.size(); ++b) {
    if (!l.c.buckets[b].plan->updated) continue;
    const Bucket& bucket = l.c.program.buckets[b];
    const CountedBucket of_bucket(l.c.plan, *l.c.buckets[b].plan);
    for (const CountedPart& counted : of_bucket.parts(l.c.stage, l.c.rank_in_stage)) {
      const View part = Compiler::own_part(
          l.c.flat(l.c.buckets[b].gradients, counted.at, counted.elements, "grad." + bucket.name, bucket.kept_type),
          OwnPart::counted, counted.whole, counted.first);
      l.c.emit(once_per_step(Opcode::kernel, "sum_squares grad." + bucket.name, &sum_squares_kernel), {part}, {norm});
      norm.operand.accumulate = true;
    }
  }
  const bool empty = !norm.operand.accumulate;
  norm.operand.accumulate = false;
  if (empty) l.c.emit(once_per_step(Opcode::kernel, "zero clip_norm", &zero_kernel), {}, {norm});
  if (!l.c.plan.is_asynchronous()) all_reduce_numbers(l, "all_reduce clip_norm", Purpose::clip, l.c.all_ranks(), norm);
  return norm;
}

/// Returns for each shard of the bucket three numbers per parameter in it: its first element in the shard, its rows and
/// its columns. The first dim of a parameter gives the rows, and all other dims together the columns. A parameter with
/// one dim is a single row.
std::vector<Ints> parameters_of_shards(const Lowering& l, const BucketPlan& bucket) {
  const int shards = bucket.level == 0 ? 1 : bucket.num_shards(l.c.plan.mesh);
  const int64_t shard_elements = bucket.elements / shards;
  std::vector<Ints> lists(static_cast<size_t>(shards));
  for (const BucketParameter& p : bucket.parameters) {
    const Shape shape = l.c.local_shape(p.tensor, p.gradient_layout);
    const int64_t rows = shape.size() < 2 ? 1 : shape[0];
    const int64_t shard = p.first_element / shard_elements;
    Ints& list = lists[static_cast<size_t>(shard)];
    for (const int64_t number : {p.first_element - shard * shard_elements, rows, p.elements / rows})
      list.push_back(number);
  }
  return lists;
}

View work_space(Lowering& l, const BucketPlan& bucket, const Optimizer& optimizer) {
  const int64_t elements = optimizer.def.work_elements(parameters_of_shards(l, bucket));
  const BufferId buffer = l.c.new_buffer(BufferKind::scratch, elements * byte_size(DType::i32));
  return l.c.flat(buffer, 0, elements, "work." + bucket.name, DType::i32);
}

/// Clips the gradient of each parameter by its own norm (optimizer.clip_parameter_norm), in place.
void clip_parameters(Lowering& l, const BucketPlan& bucket, const std::string& name, const View& gradients,
                     const View& weights) {
  Instruction i = once_per_step(Opcode::kernel, "clip " + name, &clip_parameters_kernel);
  i.attrs.set("parameters", parameters_of_shards(l, bucket));
  i.attrs.set("norm", l.c.plan.numerics.optimizer.clip_parameter_norm);
  if (l.c.plan.numerics.optimizer.scales_loss) i.attrs.set("unscale", true);
  l.c.emit(std::move(i), {weights}, {gradients});
}

Instruction update_instruction(const Lowering& l, const BucketPlan& bucket, const std::string& name) {
  const Optimizer& optimizer = l.c.optimizer_of(bucket);
  Instruction i = once_per_step(Opcode::kernel, "update " + name, optimizer.def.kernel);
  i.attrs = optimizer.kernel_attrs();
  i.attrs.set("clip_norm", l.c.plan.numerics.optimizer.clip_norm);
  if (const double value = l.c.plan.numerics.optimizer.clip_value; value > 0) i.attrs.set("clip_value", value);
  if (l.c.plan.numerics.optimizer.skips_not_finite) i.attrs.set("skip_not_finite", true);
  if (l.c.plan.numerics.optimizer.scales_loss) i.attrs.set("unscale", true);
  if (const double scale = l.c.plan.numerics.optimizer.learning_rate_scale(bucket.group); scale != 1)
    i.attrs.set("learning_rate_scale", scale);
  if (optimizer.needs_whole_parameters()) i.attrs.set("parameters", parameters_of_shards(l, bucket));
  return i;
}

/// Returns the updated buckets in the order in which their gradients are summed. An update waits only for the sum of
/// its own bucket, so the first updates overlap with the last sums.
std::vector<int> in_order_of_reduction(const Lowering& l) {
  std::vector<int> updated;
  for (int b = 0; b < static_cast<int>(l.c.buckets.size()); ++b) {
    if (l.c.buckets[b].plan->updated && !l.c.buckets[b].plan->is_table) updated.push_back(b);
  }
  std::stable_sort(updated.begin(), updated.end(),
                   [&](int a, int b) { return l.gradients[a].last_reduction < l.gradients[b].last_reduction; });
  return updated;
}

/// Emits the kernel that detects a spike of the gradient norm (train.on_spike): it compares `norm` with the norms of
/// earlier steps. All ranks have the same norms, so all ranks make the same decision.
void limit_norm(Lowering& l, const View& norm) {
  const SpikeSpec& spike = *l.c.plan.numerics.optimizer.on_spike;
  Instruction i = once_per_step(Opcode::kernel, "limit clip_norm", &limit_norm_kernel);
  i.attrs = {{"limit", spike.norm}, {"least", spike.least}, {"mean", spike.usual == "mean"}};
  if (l.c.plan.numerics.optimizer.scales_loss) i.attrs.set("unscale", true);
  l.c.emit(std::move(i), {}, {norm, l.c.flat(l.c.norms, 0, 2 + spike.window, "last norms")});
}

/// Writes into a metric whether the norm, and so some gradient, is not finite. All ranks have the same norm, so no sum
/// over ranks is needed.
void report_not_finite(Lowering& l, const View& norm, int64_t place, const std::string& metric) {
  const View number = l.c.flat(l.c.loss, l.c.num_reported() + place, 1, metric);
  l.c.emit(once_per_step(Opcode::kernel, "count " + metric, &count_not_finite_kernel), {norm}, {number});
}

bool has_shard_to_add(const Lowering& l, int bucket) {
  return std::any_of(l.scattered.begin(), l.scattered.end(),
                     [&](const ScatteredShard& s) { return s.to.buffer == l.c.buckets[bucket].gradients; });
}

}  // namespace

/// Makes an instruction that runs once per step instead of once per micro-batch. `kernel` is given for Opcode::kernel.
Instruction once_per_step(Opcode opcode, std::string name, const KernelDef* kernel) {
  Instruction i;
  i.opcode = opcode;
  i.name = std::move(name);
  if (kernel != nullptr) i.op = kernel->name;
  i.phase = Phase::backward;
  return i;
}

/// Sums a few numbers over `ranks`, in place.
void all_reduce_numbers(Lowering& l, const std::string& name, Purpose purpose, const std::vector<int>& ranks,
                        const View& numbers) {
  if (ranks.size() == 1) return;
  Instruction i = once_per_step(Opcode::collective, name);
  i.collective = Collective::all_reduce;
  i.group = l.c.group_of(ranks);
  i.purpose = purpose;
  l.c.emit(std::move(i), {numbers}, {numbers});
}

/// Sums the loss and all metrics over ranks in one collective: the ranks that count the loss also count the metrics.
void finish_loss(Lowering& l) {
  const View loss = l.c.flat(l.c.loss, 0, l.c.num_reported(), "loss");
  if (!counts_loss(l)) l.c.emit(once_per_step(Opcode::kernel, "zero loss", &zero_kernel), {}, {loss});
  if (l.c.plan.is_asynchronous()) return;
  all_reduce_numbers(l, "all_reduce loss", Purpose::loss, l.c.all_ranks(), loss);
}

void gather_updated(Lowering& l, int b, const Bucket::Piece& piece) {
  const Bucket& bucket = l.c.program.buckets[static_cast<size_t>(b)];
  if ((bucket.level != 1 && bucket.level != 2) || l.c.buckets[static_cast<size_t>(b)].gathered_in_forward) return;
  Instruction gather = once_per_step(Opcode::collective, "all_gather weights." + piece.name);
  gather.collective = Collective::all_gather;
  gather.group = bucket.shard_group;
  gather.purpose = Purpose::weights;
  const auto [shard, whole] = shard_and_whole(l, b, piece);
  l.c.emit(std::move(gather), {shard}, {whole});
}

/// Updates a piece of a bucket: all of it, or this rank's shard followed by a gather of the weights. In bf16 the
/// update also writes the copy that kernels read, and that copy is gathered.
void update(Lowering& l, int b, const Bucket::Piece& piece, const std::optional<View>& norm) {
  const RankBucket& buffers = l.c.buckets[b];
  const Bucket& bucket = l.c.program.buckets[b];
  const bool copied = buffers.compute >= 0;
  const auto part = [&](BufferId buffer, bool whole, const std::string& name, DType dtype = DType::f32) {
    if (whole) return own_shard(l, b, piece, buffer, name + piece.name, dtype);
    return l.c.flat(buffer, piece.kept_first, piece.own_elements, name + piece.name, dtype);
  };
  std::vector<View> inputs = {part(buffers.gradients, bucket.level <= 1, "grad.", bucket.kept_type)};
  if (norm) inputs.push_back(*norm);
  const Optimizer& optimizer = l.c.optimizer_of(*buffers.plan);
  const View read = part(buffers.read(), bucket.level <= 2, "weights.", buffers.read_type());
  if (l.c.plan.numerics.optimizer.clip_parameter_norm > 0)  // before anything that reads the gradients
    clip_parameters(l, *buffers.plan, "grad." + piece.name, inputs[0], read);
  Instruction update_code = update_instruction(l, *buffers.plan, piece.name);
  if (optimizer.def.sums != nullptr) {
    place_parameters(l, b, piece.own_first, update_code.attrs);
    for (View& sums : sum_over_parameters(l, b, norm, update_code.attrs)) inputs.push_back(std::move(sums));
  }
  std::vector<View> outputs = {copied ? part(buffers.weights, !buffers.weights_are_cut(), "master.") : read};
  const std::vector<std::string> states = optimizer.states();
  const bool packs = buffers.plan->state_type != StateType::fp32;
  for (size_t s = 0; s < states.size(); ++s)
    outputs.push_back(packs ? unpack_state(l, b, piece, s) : part(buffers.optimizer[s], false, states[s] + "."));
  const std::vector<View> unpacked(outputs.begin() + 1, packs ? outputs.end() : outputs.begin() + 1);
  if (optimizer.def.work_elements != nullptr) outputs.push_back(work_space(l, *buffers.plan, optimizer));
  if (copied) outputs.push_back(read);
  const View weights = outputs[0];
  l.c.emit(std::move(update_code), std::move(inputs), std::move(outputs));
  for (size_t s = 0; s < unpacked.size(); ++s) pack_state(l, b, piece, s, unpacked[s], norm);
  gather_updated(l, b, piece);
  if (buffers.average < 0 || buffers.computes_average() || l.c.plan.has_replicas()) return;
  l.c.emit(once_per_step(Opcode::kernel, "average " + piece.name, &average_weights_kernel), {weights},
           {part(buffers.average, false, "average.")});
}

void exchange_averages(Lowering& l) {
  if (l.c.loss >= 0)
    l.c.emit(once_per_step(Opcode::kernel, "zero loss", &zero_kernel), {},
             {l.c.flat(l.c.loss, 0, l.c.num_reported(), "loss")});
  for (int b = 0; b < static_cast<int>(l.c.buckets.size()); ++b) {
    const RankBucket& buffers = l.c.buckets[static_cast<size_t>(b)];
    const Bucket& bucket = l.c.program.buckets[static_cast<size_t>(b)];
    if (buffers.average < 0) continue;
    for (int p = 0; p < bucket.pieces; ++p) {
      const Bucket::Piece piece = bucket.piece(p);
      const bool copied = buffers.compute >= 0;
      const auto part = [&](BufferId buffer, bool whole, const std::string& name, DType dtype = DType::f32) {
        if (whole) return own_shard(l, b, piece, buffer, name + piece.name, dtype);
        return l.c.flat(buffer, piece.kept_first, piece.own_elements, name + piece.name, dtype);
      };
      const View read = part(buffers.read(), bucket.level <= 2, "weights.", buffers.read_type());
      std::vector<View> outputs = {copied ? part(buffers.weights, !buffers.weights_are_cut(), "master.") : read,
                                   part(buffers.average, false, "average.")};
      if (copied) outputs.push_back(read);
      l.c.emit(once_per_step(Opcode::kernel, "exchange " + piece.name, &exchange_average_kernel), {},
               std::move(outputs));
      gather_updated(l, b, piece);
    }
  }
}

bool counts_loss(const Lowering& l) { return counts_loss(l.c.graph, {l.c.plan, l.c.stage, l.c.rank_in_stage}); }

void finish_step(Lowering& l) {
  if (!l.c.graph.has_loss()) return;
  if (l.c.trains()) reduce_remaining_buckets(l);
  finish_loss(l);
  if (!l.c.trains()) return;
  average_states(l);
  if (l.c.plan.is_asynchronous() && l.c.plan.numerics.optimizer.clip_norm > 0) push_norm(l, sum_of_squares(l));
  if (serves_weights(l.c.plan)) return;  // the servers clip and update
  std::optional<View> norm;
  if (l.c.plan.numerics.optimizer.needs_norm()) {
    add_up_shards(l);
    norm = sum_of_squares(l);
  }
  if (l.c.reports_overflows()) report_not_finite(l, *norm, 1, kOverflowedMetric);
  if (l.c.norms >= 0) limit_norm(l, *norm);
  if (l.c.reports_skips()) report_not_finite(l, *norm, 0, kSkippedMetric);
  for (int b : in_order_of_reduction(l)) {
    if (has_shard_to_add(l, b)) add_up_shards(l);
    const Bucket& bucket = l.c.program.buckets[b];
    for (int p = 0; p < bucket.pieces; ++p) update(l, b, bucket.piece(p), norm);
  }
}

}  // namespace trainctl
