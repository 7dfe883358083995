// Optimizers whose updates use sums over whole parameters, which may be sharded over ranks (OptimizerDef::sums):
//
//   sums of my elements -> all_reduce -> states -> norms of my elements -> all_reduce -> update
//
// Each element counts on one of the ranks that have it, as for the norm of all gradients. If all ranks have the whole
// parameters, each computes all sums, and there is no message.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/compile/lower/lowering.h"
#include "engine/compile/rank_traits.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

/// The elements of a bucket that this rank adds to the sums over whole parameters.
struct Counted {
  int64_t first = 0, elements = 0;  ///< in the bucket
  std::optional<CountedPart> part;  ///< empty: this rank counts the whole bucket
};

class ParameterSumsOf {
 public:
  ParameterSumsOf(Lowering& l, int bucket, const std::optional<View>& norm, const Attrs& attrs)
      : l_(l),
        buffers_(l.c.buckets[static_cast<size_t>(bucket)]),
        bucket_(l.c.program.buckets[static_cast<size_t>(bucket)]),
        def_(*l.c.optimizer_of(*buffers_.plan).def.sums),
        norm_(norm),
        attrs_(attrs) {
    check(bucket_.pieces == 1, "sums over parameters are those of a whole bucket");
    find_counted();
    if (buffers_.plan->is_whole_on_ranks()) return;
    for (const int stage : buffers_.plan->stages)
      for (int r = 0; r < l.c.plan.mesh.size(); ++r) ranks_.push_back(l.c.global_rank(stage, r));
  }

  std::vector<View> emit() {
    const View sums = sum("sums", *def_.sums, elements(true), [&](const Counted& part) {
      return std::vector<View>{gradients(part), weights(part)};
    });
    std::vector<View> of_states;
    if (def_.states_update != nullptr) of_states = update_states(sums);
    const View norms =
        sum("norms", *def_.norms, static_cast<int64_t>(buffers_.plan->parameters.size()), [&](const Counted& part) {
          std::vector<View> inputs = {gradients(part)};
          for (const View& state : of_states) inputs.push_back(state);
          if (of_states.empty()) add_own_states(part, inputs);
          return inputs;
        });
    std::vector<View> all = {sums, norms};
    all.insert(all.end(), of_states.begin(), of_states.end());
    return all;
  }

 private:
  void find_counted() {
    if (buffers_.plan->is_whole_on_ranks()) {
      counted_.push_back({0, bucket_.elements, {}});
      return;
    }
    const CountedBucket all(l_.c.plan, *buffers_.plan);
    for (const CountedPart& part : all.parts(l_.c.stage, l_.c.rank_in_stage))
      counted_.push_back({bucket_.level >= 2 ? part.at + shard_begin() : part.at, part.elements, part});
  }

  int64_t shard_begin() const { return bucket_.shard * bucket_.shard_elements(); }

  /// Returns the number of elements of all states whose shape differs from the parameter's, plus one element per
  /// parameter if `with_weights`.
  int64_t elements(bool with_weights) const {
    int64_t n = 0;
    for (const BucketParameter& p : buffers_.plan->parameters) {
      if (def_.states != nullptr)
        for (const auto& [slot, shape] : def_.states(shape_of(p))) n += num_elements(shape);
      n += with_weights ? 1 : 0;
    }
    return n;
  }
  const Shape& shape_of(const BucketParameter& p) const {
    return l_.c.graph.tensors[static_cast<size_t>(p.tensor)].shape;
  }

  View part_of(BufferId buffer, bool is_cut, const Counted& part, std::string name, DType type = DType::f32) const {
    const int64_t at = part.first - (is_cut ? shard_begin() : 0);
    const View view = l_.c.flat(buffer, at, part.elements, std::move(name), type);
    if (!part.part) return view;
    return Compiler::own_part(view, OwnPart::counted, is_cut ? bucket_.shard_elements() : bucket_.elements, at);
  }
  View gradients(const Counted& part) const {
    return part_of(buffers_.gradients, bucket_.level >= 2, part, "grad." + bucket_.name, bucket_.kept_type);
  }
  View weights(const Counted& part) const {
    return part_of(buffers_.weights, buffers_.weights_are_cut(), part,
                   (buffers_.compute >= 0 ? "master." : "weights.") + bucket_.name);
  }
  void add_own_states(const Counted& part, std::vector<View>& inputs) const {
    for (size_t s = 0; s < buffers_.optimizer.size(); ++s)
      inputs.push_back(part_of(buffers_.optimizer[s], bucket_.level > 0, part,
                               l_.c.optimizer_of(*buffers_.plan).states()[s] + "." + bucket_.name));
  }

  Instruction kernel(const std::string& name, const KernelDef& def, int64_t first) const {
    Instruction i = once_per_step(Opcode::kernel, name + " " + bucket_.name, &def);
    i.attrs = attrs_;
    i.attrs.set("first", first);
    return i;
  }

  void add_norm(std::vector<View>& inputs) const {
    if (norm_) inputs.insert(inputs.begin() + 1, *norm_);
  }

  /// Emits kernel `def`, which computes `n` sums over the elements that this rank counts, and the all_reduce of these
  /// sums.
  template <class InputsOf>
  View sum(const std::string& name, const KernelDef& def, int64_t n, InputsOf inputs_of) {
    const BufferId buffer = l_.c.new_buffer(BufferKind::scratch, n * byte_size(DType::f32));
    View total = l_.c.flat(buffer, 0, n, name + "." + bucket_.name);
    for (const Counted& part : counted_) {
      std::vector<View> inputs = inputs_of(part);
      add_norm(inputs);
      l_.c.emit(kernel(name, def, part.first), std::move(inputs), {total});
      total.operand.accumulate = true;
    }
    const bool empty = !total.operand.accumulate;
    total.operand.accumulate = false;
    if (empty) l_.c.emit(once_per_step(Opcode::kernel, "zero " + total.operand.tensor, &zero_kernel), {}, {total});
    if (!ranks_.empty()) all_reduce_numbers(l_, "all_reduce " + total.operand.tensor, Purpose::clip, ranks_, total);
    return total;
  }

  /// Emits the update of the states of other shapes from `sums`. Returns the views of the states and of their means.
  std::vector<View> update_states(const View& sums) {
    int64_t n = 0;
    for (const BucketParameter& p : buffers_.plan->parameters) n += def_.means(shape_of(p));
    const View states = l_.c.flat(buffers_.other_states, 0, elements(false), "states." + bucket_.name);
    // An i32 output is only written, as the work space of other updates; it contains floats.
    const View means = l_.c.flat(l_.c.new_buffer(BufferKind::scratch, n * byte_size(DType::i32)), 0, n,
                                 "means." + bucket_.name, DType::i32);
    std::vector<View> inputs = {sums};
    add_norm(inputs);
    l_.c.emit(kernel("states", *def_.states_update, 0), std::move(inputs), {states, means});
    return {states, means};
  }

  Lowering& l_;
  const RankBucket& buffers_;
  const Bucket& bucket_;
  const ParameterSums& def_;
  const std::optional<View>& norm_;
  const Attrs& attrs_;
  std::vector<Counted> counted_;
  std::vector<int> ranks_;  ///< ranks over which sums are added up; empty: each rank has whole parameters
};

}  // namespace

void place_parameters(const Lowering& l, int b, int64_t first, Attrs& attrs) {
  std::vector<Ints> lists;
  for (const BucketParameter& p : l.c.buckets[static_cast<size_t>(b)].plan->parameters) {
    const Tensor& tensor = l.c.graph.tensors[static_cast<size_t>(p.tensor)];
    const Shape local = p.gradient_layout.local_shape(l.c.plan.mesh, tensor.shape);
    const Shape offset = p.gradient_layout.local_offset(l.c.plan.mesh, tensor.shape, l.c.rank_in_stage);
    Ints list = {p.first_element, static_cast<int64_t>(stable_hash(tensor.name)),
                 static_cast<int64_t>(tensor.shape.size())};
    for (const Shape* sizes : {&local, &tensor.shape, &offset}) list.insert(list.end(), sizes->begin(), sizes->end());
    lists.push_back(std::move(list));
  }
  attrs.set("parameters", std::move(lists));
  attrs.set("first", first);
}

std::vector<View> sum_over_parameters(Lowering& l, int bucket, const std::optional<View>& norm, const Attrs& attrs) {
  return ParameterSumsOf(l, bucket, norm, attrs).emit();
}

}  // namespace trainctl
