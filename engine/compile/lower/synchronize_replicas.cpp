// parallel.local_steps: replicas train on their own, and once every N steps this program updates the weights of all of
// them (DiLoCo, Douillard et al. 2023, arXiv:2311.08105):
//
//   difference = outer weights - weights           on each rank
//   sum of the differences over the replicas       in parallel.outer's precision
//   momentum, outer weights, weights = update      parallel.outer: SGD with Nesterov momentum; the same result on
//                                                  every replica
//
// Ranks of a replica that hold the same bucket each sum one shard of the difference over the replicas, and gather the
// rest from each other, so that each element leaves a replica once:
//
//   replica 0  rank 0 [ d0 |    ]  rank 1 [    | d1 ]      d0 is summed over ranks 0 and 2, d1 over ranks 1 and 3,
//   replica 1  rank 2 [ d0 |    ]  rank 3 [    | d1 ]      then 0 and 1, and 2 and 3, gather d0 and d1
#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/round_up.h"
#include "engine/compile/lower/lowering.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

constexpr int64_t kLineBytes = 64;

/// Returns the ranks that have the same place in their replica as this rank, one per replica.
std::vector<int> same_rank_of_replicas(const Compiler& c) {
  std::vector<int> ranks;
  for (int replica = 0; replica < c.plan.replicas; ++replica) ranks.push_back(replica * c.plan.ranks + c.rank);
  return ranks;
}

/// The operands of one piece of a bucket that this rank updates: all of it at level 0, else its shard.
class OuterPiece {
 public:
  OuterPiece(Lowering& l, int bucket, const Bucket::Piece& piece)
      : l_(l),
        b_(bucket),
        bucket_(l.c.program.buckets[static_cast<size_t>(bucket)]),
        buffers_(l.c.buckets[static_cast<size_t>(bucket)]),
        piece_(piece) {}

  void update() {
    const View difference = sum_differences();
    std::vector<View> outputs = {kept(buffers_.average, "outer."), kept(buffers_.outer_momentum, "outer_momentum."),
                                 weights()};
    if (has_copy()) outputs.push_back(read());
    Instruction i = once_per_step(Opcode::kernel, "outer update " + piece_.name, &outer_update_kernel);
    const OuterSpec& outer = l_.c.plan.numerics.outer;
    i.attrs.set("learning_rate", outer.learning_rate);
    i.attrs.set("momentum", outer.momentum);
    i.attrs.set("nesterov", outer.nesterov);
    i.attrs.set("scale", 1.0 / l_.c.plan.replicas);
    l_.c.emit(std::move(i), {difference}, std::move(outputs));
    gather_updated(l_, b_, piece_);
  }

 private:
  bool has_copy() const { return buffers_.compute >= 0; }
  View kept(BufferId buffer, const char* name) const {
    return l_.c.flat(buffer, piece_.kept_first, piece_.own_elements, name + piece_.name);
  }
  View part(BufferId buffer, bool is_whole, const char* name, DType type) const {
    if (is_whole) return own_shard(l_, b_, piece_, buffer, name + piece_.name, type);
    return l_.c.flat(buffer, piece_.kept_first, piece_.own_elements, name + piece_.name, type);
  }
  View read() const { return part(buffers_.read(), bucket_.level <= 2, "weights.", buffers_.read_type()); }
  /// The f32 weights of the piece.
  View weights() const {
    return has_copy() ? part(buffers_.weights, !buffers_.weights_are_cut(), "master.", DType::f32) : read();
  }

  /// The number of ranks of this replica that hold the same weights, and so would compute the same difference. At
  /// levels 1 to 3 each rank has a different shard, so this is 1.
  int64_t holders() const {
    if (bucket_.level > 0 || bucket_.reduce_group < 0) return 1;
    return static_cast<int64_t>(l_.c.program.groups[static_cast<size_t>(bucket_.reduce_group)].size());
  }

  /// The type in which differences are exchanged.
  DType exchanged_type() const {
    const bool is_bf16 = l_.c.plan.replicas > 1 && l_.c.plan.numerics.outer.precision == Precision::bf16;
    return is_bf16 ? DType::bf16 : DType::f32;
  }

  void elementwise(std::string name, const char* expression, std::vector<View> in, const View& out) {
    Instruction i = once_per_step(Opcode::kernel, std::move(name), &elementwise_kernel);
    i.attrs = {{"expression", expression}};
    l_.c.emit(std::move(i), std::move(in), {out});
  }

  /// Emits the sum of the differences over all replicas. The result is in f32.
  View sum_differences() {
    const std::string name = "difference." + piece_.name;
    const DType type = exchanged_type();
    const int64_t elements = piece_.own_elements, n = holders(), line = kLineBytes / byte_size(type);
    const int64_t shard = round_up((elements + n - 1) / n, n == 1 ? 1 : line), padded = shard * n;
    const BufferId buffer = l_.c.new_buffer(BufferKind::scratch, padded * byte_size(type));
    const View all = l_.c.flat(buffer, 0, elements, name, type);
    if (padded > elements) {  // zero from the last cache line with elements on; the difference is written after this
      const int64_t begin = elements / line * line;
      l_.c.emit(once_per_step(Opcode::kernel, "zero padding of " + name, &zero_kernel), {},
                {l_.c.flat(buffer, begin, padded - begin, name, type)});
    }
    elementwise(name, "x0 x1 - =0", {kept(buffers_.average, "outer."), weights()}, all);
    if (l_.c.plan.replicas > 1) sum_over_replicas(name, buffer, {.padded = padded, .shard = shard, .type = type});
    if (type == DType::f32) return all;
    const View sum =
        l_.c.flat(l_.c.new_buffer(BufferKind::scratch, elements * byte_size(DType::f32)), 0, elements, name);
    elementwise("convert " + name, "x0 =0", {all}, sum);
    return sum;
  }

  struct Exchanged {
    int64_t padded = 0, shard = 0;  ///< elements
    DType type = DType::f32;
  };

  void sum_over_replicas(const std::string& name, BufferId buffer, const Exchanged& of) {
    const View whole = l_.c.flat(buffer, 0, of.padded, name, of.type);
    const bool is_shared = of.shard < of.padded;  // the ranks of this replica share the sum
    View own = is_shared ? whole : l_.c.flat(buffer, 0, piece_.own_elements, name, of.type);
    if (is_shared) {
      const std::vector<int>& group = l_.c.program.groups[static_cast<size_t>(bucket_.reduce_group)];
      const int64_t first = of.shard * (std::find(group.begin(), group.end(), l_.c.rank) - group.begin());
      own = Compiler::own_part(l_.c.flat(buffer, first, of.shard, name, of.type), OwnPart::shard, of.padded, first);
    }
    collective("all_reduce " + name, Collective::all_reduce, l_.c.group_of(same_rank_of_replicas(l_.c)), own, own);
    if (is_shared) collective("all_gather " + name, Collective::all_gather, bucket_.reduce_group, own, whole);
  }

  void collective(std::string name, Collective kind, int group, const View& in, const View& out) {
    Instruction i = once_per_step(Opcode::collective, std::move(name));
    i.collective = kind;
    i.group = group;
    i.purpose = Purpose::outer;
    l_.c.emit(std::move(i), {in}, {out});
  }

  Lowering& l_;
  const int b_;
  const Bucket bucket_;  // a copy: groups are added meanwhile
  const RankBucket& buffers_;
  const Bucket::Piece piece_;
};

/// Averages the running statistics over the replicas, each of which has its own.
void average_statistics(Lowering& l) {
  if (l.c.plan.replicas == 1) return;
  const std::vector<int> ranks = same_rank_of_replicas(l.c);
  for (size_t i = 0; i < l.c.program.variables.size(); ++i) {
    const Variable& v = l.c.program.variables[i];
    if (l.c.states[i] < 0 || v.kind != TensorKind::state || v.is_cache) continue;
    const VariablePlan& plan = *l.c.variable_plans[i];
    View state{l.c.states[i], l.c.operand(plan.tensor, plan.layout)};
    state.operand.offset = l.c.state_offsets[i];
    average(l, v.name, state, ranks);
  }
}

}  // namespace

void synchronize_replicas(Lowering& l) {
  if (l.c.loss >= 0)
    l.c.emit(once_per_step(Opcode::kernel, "zero loss", &zero_kernel), {},
             {l.c.flat(l.c.loss, 0, l.c.num_reported(), "loss")});
  for (int b = 0; b < static_cast<int>(l.c.buckets.size()); ++b) {
    if (l.c.buckets[static_cast<size_t>(b)].outer_momentum < 0) continue;
    for (int p = 0; p < l.c.program.buckets[static_cast<size_t>(b)].pieces; ++p)
      OuterPiece(l, b, l.c.program.buckets[static_cast<size_t>(b)].piece(p)).update();
  }
  average_statistics(l);
}

}  // namespace trainctl
