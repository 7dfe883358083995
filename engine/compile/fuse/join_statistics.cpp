// Ranks that share a batch call one collective for both statistics of batch_norm, and one for both sums of its
// gradient:
//
//   mean of own rows, all_reduce, variance about it, all_reduce  ->  mean and variance of own rows, all_gather, merge
//   two sums, all_reduce, all_reduce                             ->  two adjacent sums, all_reduce
#include <algorithm>
#include <optional>

#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/ops/batch_norm/shared_statistics.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

constexpr int64_t kOperandAlignment = 64;

bool touches_buffer(const VirtualInstruction& v, BufferId buffer) {
  const auto has = [&](const std::vector<BufferId>& all) {
    return std::find(all.begin(), all.end(), buffer) != all.end();
  };
  return has(v.inputs) || has(v.outputs);
}

class JoinStatistics {
 public:
  explicit JoinStatistics(Compiler& c) : c_(c), removed_(c.code.size(), false) {}

  void run() {
    for (size_t i = 0; i < c_.code.size(); ++i) {
      if (removed_[i] || c_.code[i].code.opcode != Opcode::kernel) continue;
      if (!join_moments(i)) join_sums(i);
    }
    size_t index = 0;
    std::erase_if(c_.code, [&](const VirtualInstruction&) { return removed_[index++]; });
  }

 private:
  /// The first instruction of the same micro-batch after `from` that accesses the buffer.
  std::optional<size_t> next_use(size_t from, BufferId buffer) const {
    for (size_t i = from + 1; i < c_.code.size(); ++i) {
      if (c_.code[i].code.micro_batch != c_.code[from].code.micro_batch) return std::nullopt;
      if (!removed_[i] && touches_buffer(c_.code[i], buffer)) return i;
    }
    return std::nullopt;
  }

  /// Returns the all_reduce of output `o` of instruction `maker`, if it is the next use of this output. With
  /// `after_readers`, kernels may read the output before the all_reduce.
  std::optional<size_t> sum_of(size_t maker, size_t o, bool after_readers = false) const {
    const BufferId buffer = c_.code[maker].outputs[o];
    std::optional<size_t> use = next_use(maker, buffer);
    while (after_readers && use && only_reads(*use, buffer)) use = next_use(*use, buffer);
    if (!use) return std::nullopt;
    const VirtualInstruction& v = c_.code[*use];
    const bool is_sum = v.code.opcode == Opcode::collective && v.code.collective == Collective::all_reduce &&
                        v.inputs.size() == 1 && v.inputs[0] == buffer && is_whole(v.inputs[0], v.code.inputs[0]) &&
                        is_whole(v.outputs[0], v.code.outputs[0]);
    return is_sum ? use : std::nullopt;
  }
  bool only_reads(size_t i, BufferId buffer) const {
    const VirtualInstruction& v = c_.code[i];
    return v.code.opcode == Opcode::kernel && std::find(v.outputs.begin(), v.outputs.end(), buffer) == v.outputs.end();
  }

  /// True if the operand is in f32, fills its buffer, lives for part of the step, and has a size at which another
  /// operand may follow it in memory.
  bool is_whole(BufferId buffer, const Operand& operand) const {
    const VirtualBuffer& b = c_.buffers[static_cast<size_t>(buffer)];
    return !is_persistent(b.kind) && operand.offset == 0 && operand.bytes() == b.bytes && operand.dtype == DType::f32 &&
           !operand.accumulate && b.bytes % kOperandAlignment == 0;
  }

  bool in_same_group(size_t a, size_t b) const { return c_.code[a].code.group == c_.code[b].code.group; }

  // ---- mean and variance

  /// Joins the sums of a norm's mean and variance over ranks into one exchange, if the kernel at `first` computes such
  /// a mean. Returns whether it did.
  bool join_moments(size_t first) {
    const KernelDef* kernel = kernel_of(c_.code[first].code);
    if (kernel == nullptr || kernel->with_next != &batch_norm_mean_var_kernel) return false;
    const VirtualInstruction& mean = c_.code[first];
    if (mean.outputs.size() != 1 || !is_whole(mean.outputs[0], mean.code.outputs[0])) return false;
    const std::optional<size_t> sum = sum_of(first, 0);
    const std::optional<size_t> second = sum ? next_use(*sum, c_.code[*sum].outputs[0]) : std::nullopt;
    if (!second || !is_kernel(c_.code[*second], *kernel->next)) return false;
    const VirtualInstruction& var = c_.code[*second];
    const bool reads_alike = var.inputs.size() == 2 && var.inputs[0] == mean.inputs[0] &&
                             var.code.inputs[0].offset == mean.code.inputs[0].offset &&
                             var.code.inputs[0].bytes() == mean.code.inputs[0].bytes() &&
                             var.inputs[1] == c_.code[*sum].outputs[0] && is_whole(var.outputs[0], var.code.outputs[0]);
    const std::optional<size_t> other_sum = reads_alike ? sum_of(*second, 0) : std::nullopt;
    const int64_t parts = sum ? group_size(*sum) : 1, count = mean.code.attrs.integer("count");
    if (!other_sum || !in_same_group(*sum, *other_sum) || count % parts != 0 || writes_between(first, *second))
      return false;
    join(first, *sum, *second, *other_sum, parts);
    return true;
  }

  /// True if another instruction in between writes what the first one reads.
  bool writes_between(size_t first, size_t second) const {
    for (size_t i = first + 1; i < second; ++i) {
      const std::vector<BufferId>& outputs = c_.code[i].outputs;
      if (std::find(outputs.begin(), outputs.end(), c_.code[first].inputs[0]) != outputs.end()) return true;
    }
    return false;
  }

  int64_t group_size(size_t collective) const {
    return static_cast<int64_t>(c_.program.groups[static_cast<size_t>(c_.code[collective].code.group)].size());
  }

  static Operand operand_of(Shape shape, const std::string& tensor) {
    Operand operand;
    operand.global_offset.assign(shape.size(), 0);
    operand.global_shape = operand.shape = std::move(shape);
    operand.tensor = tensor;
    return operand;
  }

  /// Rewrites the four instructions at these indices (mean, its all_reduce, variance, its all_reduce) as three: one
  /// kernel for mean and variance of this rank's rows, an all_gather over `parts` ranks, and a kernel that merges the
  /// moments.
  void join(size_t first, size_t sum, size_t second, size_t other_sum, int64_t parts) {
    VirtualInstruction &moments = c_.code[first], &gather = c_.code[sum], &merge = c_.code[second];
    const Operand mean = gather.code.outputs[0], var = c_.code[other_sum].code.outputs[0];
    const BufferId mean_buffer = gather.outputs[0], var_buffer = c_.code[other_sum].outputs[0];
    const int64_t features = num_elements(mean.shape);
    const std::string name = mean.tensor + ", " + var.tensor;
    const BufferId own = c_.new_buffer(BufferKind::scratch, 2 * mean.bytes()),
                   all = c_.new_buffer(BufferKind::scratch, 2 * parts * mean.bytes());

    const KernelDef& both = *kernel_of(moments.code)->with_next;
    moments.code.op = both.name;
    moments.code.name += ", " + var.tensor;
    moments.code.attrs.set("count", moments.code.attrs.integer("count") / parts);
    moments.outputs = {own, own};
    moments.code.outputs = {operand_of(mean.shape, name), operand_of(var.shape, name)};
    moments.code.outputs[1].offset = mean.bytes();

    gather.code.collective = Collective::all_gather;
    gather.code.name = "all_gather " + name;
    gather.code.purpose = Purpose::statistics;
    gather.inputs = {own};
    gather.outputs = {all};
    gather.code.inputs = {operand_of({2, features}, name)};
    gather.code.outputs = {operand_of({parts, 2, features}, name)};

    merge.code.op = batch_norm_merge_kernel.name;
    merge.code.name = "merge " + name;
    merge.code.attrs = {};
    merge.inputs = {all};
    merge.code.inputs = gather.code.outputs;
    merge.outputs = {mean_buffer, var_buffer};
    merge.code.outputs = {mean, var};
    removed_[other_sum] = true;
  }

  // ---- sums of the gradient

  /// Joins the two sums over ranks of the outputs of batch_norm_grad_stats at `maker`, if there are two.
  void join_sums(size_t maker) {
    const VirtualInstruction& v = c_.code[maker];
    if (!is_kernel(v, batch_norm_grad_stats_op.kernel) || v.outputs.size() != 2) return;
    const bool apart = v.outputs[0] != v.outputs[1];
    if (!apart || !is_whole(v.outputs[0], v.code.outputs[0]) || !is_whole(v.outputs[1], v.code.outputs[1])) return;
    const std::optional<size_t> sum = sum_of(maker, 0, true), other = sum_of(maker, 1, true);
    if (!sum || !other || *other < *sum || !in_same_group(*sum, *other) || is_used_before(*sum, *other)) return;
    VirtualInstruction& call = c_.code[*sum];
    const BufferId own = v.outputs[0], other_own = v.outputs[1], summed = call.outputs[0],
                   other_summed = c_.code[*other].outputs[0];
    if ((own == summed) != (other_own == other_summed)) return;
    const std::string more = c_.code[*other].code.inputs[0].tensor, name = call.code.inputs[0].tensor + ", " + more;
    call.code.name += ", " + more;
    call.code.purpose = Purpose::statistics;
    call.code.inputs = call.code.outputs = {operand_of({2, num_elements(call.code.inputs[0].shape)}, name)};
    removed_[*other] = true;
    put_together(own, other_own, name);
    if (own != summed) put_together(summed, other_summed, name);
  }

  /// Replaces two buffers of equal size by one buffer of twice the size, with the contents of `second` behind those of
  /// `first`. Both contents get the same name, so that an instruction that reads both reads one value.
  void put_together(BufferId first, BufferId second, const std::string& name) {
    const VirtualBuffer one = c_.buffers[static_cast<size_t>(first)];
    const BufferId both = c_.new_buffer(one.kind, 2 * one.bytes);
    for (VirtualInstruction& user : c_.code) {
      move_to(both, first, 0, name, user.inputs, user.code.inputs);
      move_to(both, first, 0, name, user.outputs, user.code.outputs);
      move_to(both, second, one.bytes, name, user.inputs, user.code.inputs);
      move_to(both, second, one.bytes, name, user.outputs, user.code.outputs);
    }
  }

  /// True if the sums are used between the collectives.
  bool is_used_before(size_t sum, size_t other) const {
    for (size_t i = sum + 1; i < other; ++i)
      if (touches_buffer(c_.code[i], c_.code[other].inputs[0]) || touches_buffer(c_.code[i], c_.code[sum].outputs[0]))
        return true;
    return false;
  }

  static void move_to(BufferId to, BufferId from, int64_t offset, const std::string& name,
                      std::vector<BufferId>& buffers, std::vector<Operand>& operands) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i] != from) continue;
      buffers[i] = to;
      operands[i].offset += offset;
      operands[i].tensor = name;
    }
  }

  Compiler& c_;
  std::vector<bool> removed_;
};

}  // namespace

void join_statistics(Compiler& c) { JoinStatistics(c).run(); }

}  // namespace trainctl
