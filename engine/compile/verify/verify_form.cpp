// Checks each instruction on its own: indices, operands inside the arena, sizes that fit the collective.
#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "engine/compile/verify/verify.h"
#include "engine/graph/counted_rows.h"
#include "engine/ops/kernel.h"
#include "engine/ops/pack_states/packed_state.h"

namespace trainctl {
namespace {

std::string range_text(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

class Form {
 public:
  Form(const Program& program, int num_ranks, Faults& faults)
      : p_(program), num_ranks_(num_ranks), faults_(faults), regions_(persistent_regions(program)) {
    for (const Variable& v : p_.variables) variables_.try_emplace(v.name, &v);
    for (const Bucket& b : p_.buckets) bucket_names_.insert(b.name);
  }

  /// Checks the arena, then all operands, waits, collectives, messages and launches.
  void verify() {
    arena();
    for (index_ = 0; index_ < static_cast<int>(p_.instructions.size()); ++index_) {
      const Instruction& i = p_.instructions[index_];
      for (const Operand& operand : i.inputs) place(i, operand);
      for (const Operand& operand : i.outputs) place(i, operand);
      for (int w : i.waits) {
        if (w < 0 || w >= index_)
          fault(i.name + " waits for instruction " + std::to_string(w) + ", which is not earlier");
      }
      if (i.opcode == Opcode::collective) collective(i);
      if (i.opcode == Opcode::send || i.opcode == Opcode::recv) message(i);
      if (i.launch >= 0) launch(i);
    }
  }

 private:
  /// Checks the program's groups, that Memory adds up to the size of the arena, and that its persistent ranges do not
  /// overlap.
  void arena() {
    index_ = -1;
    for (const std::vector<int>& ranks : p_.groups) {
      if (std::find(ranks.begin(), ranks.end(), p_.rank) == ranks.end()) fault("a group does not have this rank in it");
      for (int r : ranks) {
        if (r < 0 || r >= num_ranks_) fault("a group has rank " + std::to_string(r) + ", which does not exist");
      }
    }
    if (p_.memory.arena() != p_.arena_bytes)
      fault("memory adds up to " + std::to_string(p_.memory.arena()) + " bytes, the arena has " +
            std::to_string(p_.arena_bytes));
    for (size_t r = 0; r < regions_.size(); ++r) {
      const Region& region = regions_[r];
      if (!is_inside(region.begin, region.end))
        fault(region.name + " " + range_text(region.begin, region.end) + " is not in the arena of " +
              std::to_string(p_.arena_bytes) + " bytes");
      if (r > 0 && regions_[r - 1].end > region.begin) fault(region.name + " overlaps " + regions_[r - 1].name);
    }
  }

  /// True if the byte range [begin, end) lies within the arena, or within the program's memory of the host.
  bool is_inside(int64_t begin, int64_t end) const {
    if (is_host_offset(begin)) return end >= begin && end <= kHostOffset + p_.memory.host;
    return begin >= 0 && begin <= end && end <= p_.arena_bytes;
  }

  /// Checks the kernels of one launch. A kernel may read exactly the output of an earlier kernel. Apart from this, no
  /// written range may overlap an operand of another kernel of the launch.
  void launch(const Instruction& i) {
    if (i.opcode != Opcode::kernel) fault(i.name + " is part of a launch but is not a kernel");
    const bool continues_launch = index_ > 0 && p_.instructions[index_ - 1].launch == i.launch;
    if (!continues_launch && !launches_.insert(i.launch).second)
      return fault(i.name + " is not next to the rest of its launch");
    for (int e = index_ - 1; e >= 0 && p_.instructions[e].launch == i.launch; --e) {
      const Instruction& earlier = p_.instructions[e];
      for (const Operand& written : i.outputs) {
        for (const Operand& other : earlier.inputs) check_disjoint(i, written, other, false);
        for (const Operand& other : earlier.outputs) check_disjoint(i, written, other, false);
      }
      for (const Operand& written : earlier.outputs)
        for (const Operand& read : i.inputs) check_disjoint(i, read, written, true);
    }
  }

  void check_disjoint(const Instruction& i, const Operand& a, const Operand& b, bool may_be_same) {
    if (a.offset >= b.offset + b.bytes() || b.offset >= a.offset + a.bytes()) return;
    if (may_be_same && a.offset == b.offset && a.bytes() == b.bytes()) return;
    fault(i.name + ": operand " + a.tensor + " overlaps " + b.tensor + " of the same launch");
  }

  /// Checks that an operand lies inside the arena and, if it touches a persistent range, inside this range.
  void place(const Instruction& i, const Operand& operand) {
    const int64_t begin = operand.offset, end = begin + operand.bytes();
    const auto what = [&] { return i.name + ": operand " + operand.tensor + " " + range_text(begin, end); };
    if (!is_inside(begin, end))
      return fault(what() + " is not in the arena of " + std::to_string(p_.arena_bytes) + " bytes");
    const Region* region = region_at(begin, end);
    if (region == nullptr) {
      if (begin % 64 != 0 && !is_bucket_part(operand)) fault(what() + " does not start at a multiple of 64");
      return;
    }
    if (end > region->end && is_run_of_states(region, begin, end)) return;
    if (begin < region->begin || end > region->end)
      return fault(what() + " is only partly in " + region->name + " " + range_text(region->begin, region->end));
    const auto variable = variables_.find(operand.tensor);
    const int64_t v_begin = variable == variables_.end() ? -1 : read_offset(*variable->second);
    if (v_begin < 0) return;
    const int64_t v_end = v_begin + num_elements(variable->second->shape) * byte_size(operand.dtype);
    if (begin < v_begin || end > v_end)
      fault(what() + " is not at the place of " + operand.tensor + ", " + range_text(v_begin, v_end));
  }

  /// True if [begin, end) consists of whole states without gaps between them. One call computes the means of all of
  /// them.
  bool is_run_of_states(const Region* first, int64_t begin, int64_t end) const {
    int64_t at = begin;
    for (const Region* r = first; r != regions_.data() + regions_.size() && r->begin == at && at < end; ++r) {
      const auto variable = variables_.find(r->name);
      if (variable == variables_.end() || variable->second->bucket >= 0) return false;
      at = r->end;
    }
    return at == end;
  }

  /// The offset at which kernels read a variable, or -1 if they read a gathered copy of the variable.
  int64_t read_offset(const Variable& v) const {
    const Bucket* bucket = v.bucket < 0 ? nullptr : &p_.buckets[v.bucket];
    if (bucket == nullptr || !bucket->has_compute_copy()) return v.arena_offset;
    return bucket->level == 3 ? -1 : bucket->compute_offset + v.bucket_element * byte_size(DType::bf16);
  }

  /// Parameters, gradients and shards are stored without gaps, also in gathered weights and scattered gradients.
  bool is_bucket_part(const Operand& operand) const {
    std::string_view name = operand.tensor;
    for (const std::string_view prefix : {"grad.", "weights."})
      if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    return variables_.contains(name) || bucket_names_.contains(name);
  }

  /// The first region that shares a byte with [begin, end).
  const Region* region_at(int64_t begin, int64_t end) const {
    const auto after =
        std::partition_point(regions_.begin(), regions_.end(), [begin](const Region& r) { return r.end <= begin; });
    return after != regions_.end() && after->begin < end ? &*after : nullptr;
  }

  /// Checks the group of a collective, and that its operands have the types and sizes that the collective requires.
  void collective(const Instruction& i) {
    if (i.group < 0 || i.group >= static_cast<int>(p_.groups.size()))
      return fault(i.name + " names group " + std::to_string(i.group) + " of " + std::to_string(p_.groups.size()));
    const std::vector<int>& ranks = p_.groups[i.group];
    if (std::find(ranks.begin(), ranks.end(), p_.rank) == ranks.end())
      fault(i.name + ": this rank is not in the group");
    for (int r : ranks) {
      if (r < 0 || r >= num_ranks_) fault(i.name + ": there is no rank " + std::to_string(r));
    }
    const size_t operands = i.attrs.has(kRowElements) ? 2 : 1;
    if (i.inputs.size() != operands || i.outputs.size() != 1)
      return fault(i.name + " needs " + (operands == 1 ? "one input" : "two inputs") + " and one output");
    if (operands == 2) counted(i, static_cast<int64_t>(ranks.size()));
    if (i.inputs[0].dtype != i.outputs[0].dtype)
      fault(i.name + " takes " + std::string(to_string(i.inputs[0].dtype)) + " and makes " +
            std::string(to_string(i.outputs[0].dtype)));
    const auto size = static_cast<int64_t>(ranks.size());
    int64_t in = i.inputs[0].bytes(), out = i.outputs[0].bytes();
    if (i.collective == Collective::all_gather) in *= size;
    if (i.collective == Collective::reduce_scatter) out *= size;
    const bool in_blocks = i.collective != Collective::all_reduce && i.collective != Collective::broadcast;
    if (in != out || (in_blocks && in % size != 0))
      fault(i.name + ": " + std::to_string(i.inputs[0].bytes()) + " bytes in and " +
            std::to_string(i.outputs[0].bytes()) + " out do not fit " + std::string(to_string(i.collective)) +
            " over " + std::to_string(size) + " ranks");
  }

  /// Checks a collective that sends only the used rows of each block: the rows must fill the blocks, and there must be
  /// one count of rows for each pair of ranks.
  void counted(const Instruction& i, int64_t ranks) {
    const int64_t row = i.attrs.integer(kRowElements), elements = num_elements(i.inputs[0].shape);
    if (i.collective != Collective::all_to_all) fault(i.name + ": only an all_to_all has counts of rows");
    if (row < 1 || elements % (ranks * row) != 0)
      fault(i.name + ": blocks of " + std::to_string(elements / ranks) + " elements do not consist of rows of " +
            std::to_string(row));
    if (i.inputs[1].dtype != DType::i32 || i.inputs[1].shape != Shape{ranks, ranks})
      fault(i.name + ": the counts of rows are not i32 [" + std::to_string(ranks) + ", " + std::to_string(ranks) + "]");
  }

  void message(const Instruction& i) {
    if (i.peer < 0 || i.peer >= num_ranks_ || i.peer == p_.rank)
      fault(i.name + ": " + std::to_string(i.peer) + " is not another rank");
    const auto& operands = i.opcode == Opcode::send ? i.inputs : i.outputs;
    if (operands.size() != 1) return fault(i.name + " needs one operand");
    if (operands[0].accumulate && operands[0].dtype != DType::f32)
      fault(i.name + " adds " + std::string(to_string(operands[0].dtype)) + ": only f32 can be added on receipt");
  }

  void fault(std::string message) { faults_.push_back({p_.rank, index_, std::move(message)}); }

  const Program& p_;
  const int num_ranks_;
  Faults& faults_;
  std::set<int> launches_;                                           ///< launches that have begun
  std::unordered_map<std::string_view, const Variable*> variables_;  ///< by name
  std::unordered_set<std::string_view> bucket_names_;
  const std::vector<Region> regions_;
  int index_ = -1;
};

}  // namespace

namespace {

/// Adds a region for each run of adjacent states. Adjacent states are one region because one kernel updates all states
/// of a bucket.
void add_other_states(const Program& program, std::vector<Region>& regions) {
  const auto of_buckets = static_cast<std::ptrdiff_t>(regions.size());
  for (const OtherState& state : program.other_states) {
    const Variable& v = state.variable;
    const int64_t begin = v.arena_offset, end = begin + num_elements(v.shape) * byte_size(v.dtype);
    const bool is_of_bucket = std::any_of(regions.begin(), regions.begin() + of_buckets,
                                          [&](const Region& r) { return r.begin <= begin && end <= r.end; });
    if (begin == end || is_of_bucket) continue;
    if (static_cast<std::ptrdiff_t>(regions.size()) > of_buckets && regions.back().end == begin)
      regions.back().end = end;
    else
      regions.push_back({state.slot + "." + v.name, begin, end, true});
  }
}

}  // namespace

std::vector<Region> persistent_regions(const Program& program) {
  std::vector<Region> regions;
  const auto add = [&](std::string name, int64_t begin, int64_t bytes, bool holds) {
    if (begin >= 0 && bytes > 0) regions.push_back({std::move(name), begin, begin + bytes, holds});
  };
  for (const Bucket& b : program.buckets) {
    const int64_t whole = b.elements * byte_size(DType::f32), shard = whole / b.shards;
    const bool pulled = b.served && program.server < 0;
    const int64_t read = (b.level == 3 ? b.shard_elements() : b.elements) * byte_size(DType::bf16);
    add((b.has_compute_copy() ? "master." : "weights.") + b.name, b.weights_offset, b.weights_are_cut() ? shard : whole,
        !pulled);
    add("weights." + b.name, b.compute_offset, read, !pulled);
    if (!b.gradients_share_memory) {
      add("grad." + b.name, b.gradients_offset, gradient_bytes(b), false);
      add("sums of grad." + b.name, b.sums_offset, whole, false);
    }
    if (!b.computes_average()) add("average." + b.name, b.average_offset, b.level >= 1 ? shard : whole, true);
    add("outer momentum." + b.name, b.outer_momentum_offset, b.level >= 1 ? shard : whole, true);
    const int64_t own = b.level >= 1 ? b.shard_elements() : b.elements;
    const int64_t state_bytes = b.scale_offsets.empty() ? byte_size(b.state_type) : 1;
    for (int64_t offset : b.optimizer_offsets) add("optimizer." + b.name, offset, own * state_bytes, true);
    for (int64_t offset : b.scale_offsets)
      add("scales." + b.name, offset, own / kStateBlock * byte_size(DType::f32), true);
  }
  for (const Variable& v : program.variables) {
    if (v.bucket < 0) add(v.name, v.arena_offset, num_elements(v.shape) * byte_size(v.dtype), true);
  }
  add_other_states(program, regions);
  add("scalars", program.scalars_offset, sizeof(StepScalars), true);
  const auto reported = static_cast<int64_t>(1 + program.metrics.size());
  add("loss", program.loss_offset, reported * byte_size(DType::f32), false);
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
  return regions;
}

void verify_form(const Program& program, int num_ranks, Faults& faults) { Form(program, num_ranks, faults).verify(); }

}  // namespace trainctl
