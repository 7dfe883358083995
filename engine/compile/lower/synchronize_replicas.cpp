// parallel.local_steps: replicas train on their own, and once every N steps this program updates the weights of all of
// them (DiLoCo, Douillard et al. 2023, arXiv:2311.08105):
//
//   difference = outer weights - weights           on each rank
//   sum of the differences over the replicas
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

constexpr int64_t kLineElements = 64 / byte_size(DType::f32);

/// The rank with the same place in each replica.
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
  /// In f32.
  View weights() const {
    return has_copy() ? part(buffers_.weights, !buffers_.weights_are_cut(), "master.", DType::f32) : read();
  }

  /// The ranks of this replica that would compute the same difference; at higher levels each has a shard of its own.
  int64_t holders() const {
    if (bucket_.level > 0 || bucket_.reduce_group < 0) return 1;
    return static_cast<int64_t>(l_.c.program.groups[static_cast<size_t>(bucket_.reduce_group)].size());
  }

  View sum_differences() {
    const std::string name = "difference." + piece_.name;
    const int64_t elements = piece_.own_elements, n = holders();
    const int64_t shard = round_up((elements + n - 1) / n, n == 1 ? 1 : kLineElements), padded = shard * n;
    const BufferId buffer = l_.c.new_buffer(BufferKind::scratch, padded * byte_size(DType::f32));
    const View all = l_.c.flat(buffer, 0, elements, name);
    if (padded > elements) {  // from the last line that has elements on; the difference follows
      const int64_t begin = elements / kLineElements * kLineElements;
      l_.c.emit(once_per_step(Opcode::kernel, "zero padding of " + name, &zero_kernel), {},
                {l_.c.flat(buffer, begin, padded - begin, name)});
    }
    Instruction subtract = once_per_step(Opcode::kernel, name, &elementwise_kernel);
    subtract.attrs = {{"expression", "x0 x1 - =0"}};
    l_.c.emit(std::move(subtract), {kept(buffers_.average, "outer."), weights()}, {all});
    View own = all;
    if (n > 1) {
      const std::vector<int>& group = l_.c.program.groups[static_cast<size_t>(bucket_.reduce_group)];
      const auto place = std::find(group.begin(), group.end(), l_.c.rank) - group.begin();
      own = Compiler::own_part(l_.c.flat(buffer, place * shard, shard, name), OwnPart::shard, padded, place * shard);
    }
    if (l_.c.plan.replicas == 1) return all;  // others have left (launch.elastic)
    collective("all_reduce " + name, Collective::all_reduce, l_.c.group_of(same_rank_of_replicas(l_.c)), own, own);
    if (n > 1)
      collective("all_gather " + name, Collective::all_gather, bucket_.reduce_group, own,
                 l_.c.flat(buffer, 0, padded, name));
    return all;
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

/// Running statistics, which each replica has for itself.
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
