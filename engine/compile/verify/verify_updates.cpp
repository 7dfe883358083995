// Every gradient is summed over its group exactly once per step, and every parameter is updated exactly once.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "engine/compile/arena_map.h"
#include "engine/compile/verify/verify.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

constexpr int64_t kUpdatedFloat = byte_size(DType::f32), kHalf = byte_size(DType::bf16);

struct UpdatedRange {
  int64_t begin = 0, end = 0;
  bool is(const Operand& o) const { return o.offset == begin && o.offset + o.bytes() == end; }
  bool touches(const Operand& o) const { return o.offset < end && begin < o.offset + o.bytes(); }
  bool touches(const std::vector<Operand>& all) const {
    return std::any_of(all.begin(), all.end(), [this](const Operand& o) { return touches(o); });
  }
};

/// The checks for one piece of a bucket.
class BucketUpdates {
 public:
  BucketUpdates(const Program& program, int bucket, int piece, Faults& faults)
      : p_(program),
        bucket_(bucket),
        b_(program.buckets[bucket]),
        piece_(program.buckets[bucket].piece(piece)),
        faults_(faults) {
    const int64_t size = byte_size(b_.kept_type);
    gradients_ = b_.level >= 2 ? kept(b_.gradients_offset, size) : whole(b_.gradients_offset, size);
    contributions_ = b_.sums_offset >= 0 ? whole(b_.sums_offset, kUpdatedFloat) : gradients_;
    weights_ = b_.weights_are_cut() ? kept(b_.weights_offset, kUpdatedFloat) : whole(b_.weights_offset, kUpdatedFloat);
    updated_ = b_.weights_are_cut() ? weights_ : this_shard(b_.weights_offset, kUpdatedFloat);
    if (!b_.has_compute_copy()) {
      read_ = weights_;
      return;
    }
    read_ = b_.level == 3 ? kept(b_.compute_offset, kHalf) : whole(b_.compute_offset, kHalf);
    copied_ = b_.level == 3 ? read_ : this_shard(b_.compute_offset, kHalf);
  }

  int bucket() const { return bucket_; }
  /// The arena ranges that belong to this piece: an operand that touches one of these ranges concerns the piece. If
  /// other buffers use the memory of the gradients too, an operand is recognized as a gradient only by its name.
  std::vector<UpdatedRange> ranges() const {
    if (b_.gradients_share_memory) return {weights_, read_};
    return {gradients_, contributions_, weights_, read_};
  }
  std::string gradient_name() const { return "grad." + piece_.name; }
  std::string difference_name() const { return "difference." + piece_.name; }

  /// Runs all checks of this piece. `instructions` are indices in list order. They include at least every instruction
  /// that names the piece or touches one of its ranges.
  void verify(const std::vector<int>& instructions) {
    if (b_.updated_by_parts) return verify_parts(instructions);
    for (int index : instructions) {
      index_ = index;
      const Instruction& i = p_.instructions[index_];
      updates_ > 0 ? read_updated(i) : read_old(i);
      if (kernel_of(i) == &clip_parameters_kernel) {
        clip(i);
      } else if (kernel_of(i) == &exchange_average_kernel) {
        exchange(i);
      } else if (kernel_of(i) == &outer_update_kernel) {
        update_outer(i);
      } else if (is_update(i) && weights_.touches(i.outputs[0])) {
        update(i);
      } else if (i.opcode == Opcode::collective && i.purpose == Purpose::outer) {
        if (i.collective == Collective::all_reduce) ++outer_sums_;
      } else if (i.opcode == Opcode::collective && i.purpose == Purpose::gradient && sums_this(i)) {
        reduce(i);
      } else if (i.opcode == Opcode::collective && i.purpose == Purpose::weights && read_.is(i.outputs[0])) {
        gather(i);
      } else if (b_.gradients_offset >= 0) {
        contribute(i);
      }
    }
    at_the_end();
  }

 private:
  /// Checks a bucket without stored gradients: kernels of the backward pass update its weights themselves
  /// (fuse_update). Each parameter must be updated exactly once, as a whole.
  void verify_parts(const std::vector<int>& instructions) {
    std::map<int64_t, std::pair<const Variable*, int>> steps;  // by offset
    for (const Variable& v : p_.variables)
      if (v.bucket == bucket_) steps[v.arena_offset] = {&v, 0};
    for (int index : instructions) {
      index_ = index;
      const Instruction& i = p_.instructions[index_];
      for (const Operand& out : i.outputs) {
        if (!weights_.touches(out)) continue;
        if (!epilogue_of(i.attrs).descend || !out.accumulate) fault(i.name + " writes weights of " + b_.name);
        const auto found = steps.find(out.offset);
        if (found == steps.end() || num_elements(found->second.first->shape) * kUpdatedFloat != out.bytes())
          fault(i.name + " does not update exactly one parameter of " + b_.name);
        else
          ++found->second.second;
      }
    }
    index_ = -1;
    for (const auto& [offset, step] : steps) {
      if (step.second != 1)
        fault(step.first->name + " is updated " + std::to_string(step.second) + " times in one step, not once");
    }
  }

  bool sums_this(const Instruction& i) const {
    return i.inputs[0].tensor == gradient_name() || touches(gradients_, i.inputs[0]);
  }

  /// Checks the second sum of optimizer_shard.within_host. It sums this rank's shard over hosts, and comes after all
  /// contributions of the step have been added to the shard.
  void sum_over_hosts(const Instruction& i) {
    if (i.group != b_.reduce_group)
      fault(i.name + " sums " + gradient_name() + " over a different group than that of the bucket");
    if (!summed().is(i.inputs[0]) || !summed().is(i.outputs[0]))
      fault(i.name + " does not sum exactly the local shard of " + gradient_name());
    if (i.inputs[0].dtype != b_.kept_type) fault(i.name + " sums " + gradient_name() + " in a different type");
    if (reduces_ == 0) fault(i.name + " sums " + gradient_name() + " over hosts before it is summed in each");
    if (host_sums_++ > 0) fault(i.name + ": " + gradient_name() + " is summed over hosts twice in one step");
    if (updates_ > 0) fault(i.name + " sums " + gradient_name() + " after it was used");
  }

  /// Checks a sum of the bucket's gradients over ranks: its type, group, extent, and that it comes once and in time.
  void reduce(const Instruction& i) {
    if (b_.is_summed_twice() && i.collective == Collective::all_reduce) return sum_over_hosts(i);
    if (host_sums_ > 0) fault(i.name + " sums " + gradient_name() + " after it was summed over hosts");
    if (i.inputs[0].dtype != b_.gradient_type)
      fault(i.name + " sums " + gradient_name() + " in a different type than that of the bucket");
    if (b_.sums_offset >= 0 && rounds_ == 0) fault(i.name + " sums " + gradient_name() + " before it is rounded");
    if (i.group != (b_.level == 0 ? b_.reduce_group : b_.shard_group))
      fault(i.name + " sums " + gradient_name() + " over a different group than that of the bucket");
    if (b_.level < 2 && (!gradients_.is(i.inputs[0]) || !summed().is(i.outputs[0])))
      fault(i.name + " does not sum the whole of " + gradient_name());
    if (b_.level < 2 && reduces_ > 0) fault(i.name + ": " + gradient_name() + " is reduced twice in one step");
    if (b_.level >= 2 && !reduced_micro_batches_.insert(i.micro_batch).second)
      fault(i.name + ": " + gradient_name() + " of micro-batch " + std::to_string(i.micro_batch) + " is reduced twice");
    if (updates_ > 0) fault(i.name + " sums " + gradient_name() + " after it was used");
    if (b_.level >= 2 && touches(gradients_, i.outputs[0])) ++additions_;
    ++reduces_;
  }

  /// Checks an instruction that writes gradients but does not sum them over ranks: a kernel of the backward pass.
  void contribute(const Instruction& i) {
    // Before rounding, a kernel's output may have the name of a parameter and lie in the memory that later gets the
    // rounded gradients.
    const auto is_rounded = [this](const Operand& out) {
      return touches(gradients_, out) && !(b_.gradients_share_memory && is_part(out));
    };
    if (b_.sums_offset >= 0 && std::any_of(i.outputs.begin(), i.outputs.end(), is_rounded)) return round(i);
    for (const Operand& out : i.outputs) {
      // At levels 2 and 3 contributions go to a range that lives for one micro-batch. The kept gradients, which begin
      // with the first sum over ranks or with a copy of this sum, may later get the same memory.
      const bool is_early = b_.level >= 2 && b_.gradients_share_memory && additions_ == 0 && !gradients_.is(out);
      if (is_early || !touches(contributions_, out)) {
        if (b_.level >= 2 && is_part(out)) contributed_micro_batches_.insert(i.micro_batch);
        continue;
      }
      if (b_.level >= 2) {
        if (host_sums_ > 0) fault(i.name + " adds to " + gradient_name() + " after it was summed over hosts");
        if (out.dtype != b_.kept_type) fault(i.name + " adds to " + gradient_name() + " in a different type");
        if (additions_ > 0 && !out.accumulate)
          fault(i.name + " overwrites the accumulated values of " + gradient_name());
        ++additions_;
        continue;
      }
      if (reduces_ > 0) fault(i.name + " writes " + out.tensor + " after " + gradient_name() + " was reduced");
      if (rounds_ > 0) fault(i.name + " writes " + out.tensor + " after " + gradient_name() + " was rounded");
      if (!out.accumulate && !first_.insert(out.offset).second)
        fault(i.name + " overwrites the accumulated contributions to " + out.tensor);
    }
  }

  /// Rounds the accumulated contributions into the range that ranks sum.
  void round(const Instruction& i) {
    if (kernel_of(i) != &copy_slice_kernel || !contributions_.is(i.inputs[0]) || !gradients_.is(i.outputs[0]) ||
        i.outputs[0].dtype != b_.gradient_type)
      fault(i.name + " does not round the whole of " + gradient_name());
    if (++rounds_ > 1 || reduces_ > 0) fault(i.name + ": " + gradient_name() + " is rounded twice or too late");
  }

  /// Checks the gather of the weights. It comes after the update, or before the first use of the weights in the step if
  /// nothing reads them between two steps.
  void gather(const Instruction& i) {
    ++gathers_;
    if (updates_ > 0) return;
    if (!b_.weights_are_cut()) fault(i.name + " leaves old weights in " + b_.name + " at the end of the step");
    if (!early_reader_.empty()) fault(early_reader_ + " reads weights of " + b_.name + " before they are gathered");
  }

  void read_old(const Instruction& i) {
    if (gathers_ > 0 || !early_reader_.empty() || (i.opcode == Opcode::collective && i.purpose == Purpose::weights))
      return;
    if (read_.touches(i.inputs)) early_reader_ = i.name;
  }

  /// An instruction that reads weights after their update would compute with those of the next step.
  void read_updated(const Instruction& i) {
    const bool gathers = i.opcode == Opcode::collective && i.purpose == Purpose::weights;
    const bool averages = kernel_of(i) == &average_weights_kernel && updated_.is(i.inputs[0]);
    for (const Operand& in : i.inputs) {
      if (read_.touches(in) && !(gathers && i.micro_batch < 0) && !averages)
        fault(i.name + " reads weights of " + b_.name + " after their update");
    }
  }

  /// True if the operand holds gradients of this piece in the range, and not another tensor in memory that they share.
  bool touches(const UpdatedRange& range, const Operand& o) const {
    return range.touches(o) &&
           (!b_.gradients_share_memory || o.tensor == gradient_name() || o.tensor == "grad." + b_.name || is_part(o));
  }

  /// True if the operand is the gradient of a parameter of this bucket, or a piece of it. A larger operand of the same
  /// name holds the gradient in another layout, before it is redistributed to the parameter's.
  bool is_part(const Operand& out) const {
    if (!out.tensor.starts_with("grad.")) return false;
    return std::any_of(p_.variables.begin(), p_.variables.end(), [&](const Variable& v) {
      return v.bucket == bucket_ && out.tensor.compare(5, std::string::npos, v.name) == 0 &&
             num_elements(out.shape) <= num_elements(v.shape);
    });
  }

  /// Checks that clipping scales exactly the range that the update reads, after all sums.
  void clip(const Instruction& i) {
    if (!summed().is(i.outputs[0])) fault(i.name + " does not clip exactly the local shard of " + gradient_name());
    if ((b_.reduce_group >= 0 && reduces_ == 0) || updates_ > 0)
      fault(i.name + " clips " + gradient_name() + " before it is reduced, or after its use");
  }

  /// Checks the exchange of this rank's shard of the weights with the shard of their average.
  void exchange(const Instruction& i) {
    if (++updates_ > 1) fault(i.name + ": the weights of " + b_.name + " are exchanged twice");
    if (i.outputs.size() < 2 || !updated_.is(i.outputs[0]) ||
        i.outputs[1].offset != kept(b_.average_offset, kUpdatedFloat).begin)
      return fault(i.name + " does not exchange exactly the local shard of " + b_.name + " with its average");
    if (b_.has_compute_copy() && !copied_.is(i.outputs.back()))
      fault(i.name + " does not write exactly the local shard of the bf16 copy of " + b_.name);
  }

  /// Checks the update by the outer optimizer. Once every parallel.local_steps steps, it replaces this rank's shard of
  /// the weights by the outer weights.
  void update_outer(const Instruction& i) {
    if (i.inputs.size() != 1 || i.inputs[0].tensor != difference_name() || (p_.replicas > 1 && outer_sums_ != 1))
      fault(i.name + " does not read the sum over replicas of the differences of " + piece_.name);
    if (++updates_ > 1) fault(i.name + ": the weights of " + b_.name + " are synchronized twice");
    const size_t copy = b_.has_compute_copy() ? 1 : 0;
    if (i.outputs.size() != 3 + copy || i.outputs[0].offset != kept(b_.average_offset, kUpdatedFloat).begin ||
        i.outputs[1].offset != kept(b_.outer_momentum_offset, kUpdatedFloat).begin || !updated_.is(i.outputs[2]))
      return fault(i.name + " does not update exactly the local shard of " + b_.name + " and its outer state");
    if (copy > 0 && !copied_.is(i.outputs.back()))
      fault(i.name + " does not write exactly the local shard of the bf16 copy of " + b_.name);
  }

  /// Checks an optimizer step: it comes once, after all sums, and reads and writes exactly this rank's shard.
  void update(const Instruction& i) {
    if (b_.gradients_offset < 0) return fault(i.name + " updates " + b_.name + ", which has no gradients");
    if (++updates_ > 1) fault(i.name + ": " + b_.name + " is updated twice in one step");
    if (!updated_.is(i.outputs[0])) fault(i.name + " does not update exactly the local shard of " + b_.name);
    if (!summed().is(i.inputs[0])) fault(i.name + " does not read exactly the local shard of " + gradient_name());
    if (i.inputs[0].dtype != b_.kept_type) fault(i.name + " takes " + gradient_name() + " in a different type");
    if (b_.sums_offset >= 0 && rounds_ == 0) fault(i.name + " uses " + gradient_name() + " before it is rounded");
    const size_t states = b_.optimizer_offsets.size();
    const bool unpacks = b_.state_type != DType::f32 || !b_.scale_offsets.empty();  // into scratch memory
    for (size_t s = 0; s < states && !unpacks; ++s) {
      if (s + 1 >= i.outputs.size() || i.outputs[s + 1].offset != kept(b_.optimizer_offsets[s], kUpdatedFloat).begin)
        fault(i.name + " does not use the optimizer state of " + b_.name);
    }
    const size_t works = std::any_of(i.outputs.begin(), i.outputs.end(),
                                     [](const Operand& o) {
                                       return o.dtype == DType::i32;  // OptimizerDef::work_elements
                                     })
                             ? 1
                             : 0;
    if (i.outputs.size() != 1 + states + works + (b_.has_compute_copy() ? 1 : 0))
      return fault(i.name + " has " + std::to_string(i.outputs.size()) + " outputs, which do not fit " + b_.name);
    if (b_.has_compute_copy() && (!copied_.is(i.outputs.back()) || i.outputs.back().dtype != b_.compute_type))
      fault(i.name + " does not write exactly the local shard of the 16-bit copy of " + b_.name);
    if (b_.reduce_group >= 0 && reduces_ == 0) fault(i.name + " uses " + gradient_name() + " before it is reduced");
    if (b_.is_summed_twice() && host_sums_ == 0)
      fault(i.name + " uses " + gradient_name() + " before it is summed over hosts");
  }

  /// Checks what must have happened by the end of the step: reduced, updated and gathered as often as the level
  /// requires.
  void at_the_end() {
    index_ = -1;
    if (b_.gradients_offset < 0) return;
    if (updates_ == 0) fault(b_.name + " is never updated");
    if (b_.reduce_group >= 0 && reduces_ == 0) fault(gradient_name() + " is never reduced");
    if ((b_.level == 1 || b_.level == 2) && gathers_ != 1)
      fault("the weights of " + b_.name + " are gathered " + std::to_string(gathers_) + " times in a step, not once");
    if (b_.level < 2 || b_.served) return;
    if (additions_ != reduces_)
      fault(gradient_name() + ": " + std::to_string(reduces_) + " sums are computed, but " +
            std::to_string(additions_) + " are added");
    for (int m : contributed_micro_batches_) {
      if (!reduced_micro_batches_.contains(m))
        fault(gradient_name() + " of micro-batch " + std::to_string(m) + " is never reduced");
    }
  }

  /// The range that this rank's update reads.
  UpdatedRange summed() const {
    return b_.level == 1 ? this_shard(b_.gradients_offset, byte_size(b_.kept_type)) : gradients_;
  }

  /// The piece in a bucket's whole range at `offset`, or this rank's part of it; in a range of shards: its part.
  UpdatedRange whole(int64_t offset, int64_t element_bytes) const {
    return range(offset, piece_.first, piece_.elements, element_bytes);
  }
  UpdatedRange this_shard(int64_t offset, int64_t element_bytes) const {
    return range(offset, piece_.own_first, piece_.own_elements, element_bytes);
  }
  UpdatedRange kept(int64_t offset, int64_t element_bytes) const {
    return range(offset, piece_.kept_first, piece_.own_elements, element_bytes);
  }
  /// Returns an empty range if `offset` is negative, which means that the bucket has no such memory. For example, bf16
  /// weights that are never updated have no f32 copy.
  static UpdatedRange range(int64_t offset, int64_t first, int64_t elements, int64_t element_bytes) {
    if (offset < 0) return {};
    return {offset + first * element_bytes, offset + (first + elements) * element_bytes};
  }

  void fault(std::string message) { faults_.push_back({p_.rank, index_, std::move(message)}); }

  const Program& p_;
  const int bucket_;
  const Bucket& b_;
  const Bucket::Piece piece_;
  Faults& faults_;
  UpdatedRange gradients_;          ///< the range that the update reads
  UpdatedRange contributions_;      ///< the range that kernels of the backward pass write: the same, or f32 sums
  UpdatedRange weights_, updated_;  ///< the range that is kept, and the part of it that this rank updates
  UpdatedRange read_,
      copied_;  ///< the range that kernels read, and the part of a bf16 copy that this rank's update writes
  int index_ = 0, reduces_ = 0, updates_ = 0, gathers_ = 0, additions_ = 0, rounds_ = 0, host_sums_ = 0,
      outer_sums_ = 0;
  std::string early_reader_;  ///< the first reader of the weights before they are gathered
  std::set<int64_t> first_;
  std::set<int> contributed_micro_batches_, reduced_micro_batches_;
};

/// Finds the pieces of buckets that an operand belongs to, by its bytes and its name.
class UpdatedPieces {
 public:
  UpdatedPieces(const Program& program, const std::vector<BucketUpdates>& pieces) {
    for (size_t p = 0; p < pieces.size(); ++p) {
      for (const UpdatedRange& range : pieces[p].ranges())
        if (range.begin < range.end)
          by_byte_.for_each(range.begin, range.end, [p](std::vector<size_t>& here) { add(here, p); });
      by_name_[pieces[p].gradient_name()].push_back(p);
      by_name_[pieces[p].difference_name()].push_back(p);
    }
    std::vector<std::vector<size_t>> of_bucket(program.buckets.size());
    for (size_t p = 0; p < pieces.size(); ++p) of_bucket[static_cast<size_t>(pieces[p].bucket())].push_back(p);
    for (size_t b = 0; b < of_bucket.size(); ++b) by_name_["grad." + program.buckets[b].name] = of_bucket[b];
    for (const Variable& v : program.variables)
      if (v.bucket >= 0) by_name_["grad." + v.name] = of_bucket[static_cast<size_t>(v.bucket)];
  }

  void of(const Operand& operand, std::vector<size_t>& found) {
    by_byte_.for_each(operand.offset, operand.offset + operand.bytes(), [&](const std::vector<size_t>& here) {
      for (size_t p : here) add(found, p);
    });
    const auto named = by_name_.find(operand.tensor);
    if (named == by_name_.end()) return;
    for (size_t p : named->second) add(found, p);
  }

 private:
  static void add(std::vector<size_t>& list, size_t p) {
    if (std::find(list.begin(), list.end(), p) == list.end()) list.push_back(p);
  }

  ArenaMap<std::vector<size_t>> by_byte_;
  std::unordered_map<std::string, std::vector<size_t>> by_name_;
};

}  // namespace

void verify_updates(const Program& program, Faults& faults) {
  std::vector<BucketUpdates> updates;
  for (size_t b = 0; b < program.buckets.size(); ++b)
    for (int p = 0; p < program.buckets[b].pieces && !(program.buckets[b].served && program.server < 0) &&
                    !program.buckets[b].table;
         ++p)
      updates.emplace_back(program, static_cast<int>(b), p, faults);
  std::vector<std::vector<int>> instructions(updates.size());  // the instructions that each piece must check
  UpdatedPieces pieces(program, updates);
  std::vector<size_t> found;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    found.clear();
    for (const Operand& in : program.instructions[i].inputs) pieces.of(in, found);
    for (const Operand& out : program.instructions[i].outputs) pieces.of(out, found);
    for (size_t p : found) instructions[p].push_back(static_cast<int>(i));
  }
  for (size_t p = 0; p < updates.size(); ++p) updates[p].verify(instructions[p]);
}

}  // namespace trainctl
