// Fuses the step of plain SGD into the kernel that computes a gradient. If one kernel makes the only contribution to a
// parameter's gradient, and no instruction reads the parameter after it, that kernel takes the step itself: W +=
// -learning_rate * dW. The gradient is then neither written nor read, and takes no memory.
#include <algorithm>
#include <vector>

#include "engine/compile/arena_map.h"
#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// The instructions that write the bucket's gradients, and the one that uses them; no writers if the kernels cannot
/// take the step.
struct Writers {
  std::vector<size_t> at;
  size_t update = 0;
};

/// Returns for each buffer the instructions that read or write it, in order.
std::vector<std::vector<size_t>> find_users(const Compiler& c) {
  std::vector<std::vector<size_t>> users(c.buffers.size());
  const auto add = [&](BufferId buffer, size_t i) {
    std::vector<size_t>& list = users[static_cast<size_t>(buffer)];
    if (list.empty() || list.back() != i) list.push_back(i);
  };
  for (size_t i = 0; i < c.code.size(); ++i) {
    for (BufferId buffer : c.code[i].inputs) add(buffer, i);
    for (BufferId buffer : c.code[i].outputs) add(buffer, i);
  }
  return users;
}

/// The kernels that write the gradients of the bucket, if all of them can apply the update instead. Then no other
/// instruction reads the gradients, and each writer comes after the last read of the weights that it would change.
Writers find_writers(const Compiler& c, const std::vector<std::vector<size_t>>& users, const RankBucket& bucket) {
  Writers found;
  bool fits = true;
  ArenaMap<size_t> last_reads;  // of the weights, by byte
  for (size_t i : users[static_cast<size_t>(bucket.weights)]) {
    const VirtualInstruction& v = c.code[i];
    for (size_t n = 0; n < v.inputs.size(); ++n) {
      const Operand& in = v.code.inputs[n];
      if (v.inputs[n] != bucket.weights) continue;
      last_reads.for_each(in.offset, in.offset + in.bytes(), [i](size_t& last) { last = std::max(last, i); });
    }
  }
  for (size_t i : users[static_cast<size_t>(bucket.gradients)]) {
    if (!fits) break;
    const VirtualInstruction& v = c.code[i];
    if (names(v.inputs, bucket.gradients)) {
      fits = is_update(v.code);
      found.update = i;
    }
    if (!names(v.outputs, bucket.gradients)) continue;
    const KernelDef* kernel = kernel_of(v.code);
    fits = fits && kernel != nullptr && kernel->takes_step(EpilogueStep::descend) && v.outputs.size() == 1 &&
           !v.code.outputs[0].accumulate;
    const Operand& made = v.code.outputs[0];  // weights and gradients have the same layout
    last_reads.for_each(made.offset, made.offset + made.bytes(), [&](size_t last) { fits = fits && last <= i; });
    found.at.push_back(i);
  }
  if (!fits) found.at.clear();
  return found;
}

void take_the_step(VirtualInstruction& v, BufferId weights) {
  v.outputs[0] = weights;
  Operand& out = v.code.outputs[0];
  out.accumulate = true;
  if (out.tensor.starts_with("grad.")) out.tensor.erase(0, 5);
  Epilogue epilogue = epilogue_of(v.code.attrs);
  epilogue.descend = true;
  set_epilogue(v.code.attrs, epilogue);
  v.code.name = "update " + out.tensor;
}

}  // namespace

void fuse_update(Compiler& c) {
  if (!c.trains() || c.plan.numerics.keeps_gradients) return;  // they are of gradients that are stored
  const std::vector<std::vector<size_t>> users = find_users(c);
  std::vector<size_t> removed;
  for (size_t b = 0; b < c.buckets.size(); ++b) {
    Bucket& bucket = c.program.buckets[b];
    if (!c.is_plain_step(*c.buckets[b].plan)) continue;
    if (!c.buckets[b].plan->updated || bucket.level != 0 || bucket.reduce_group >= 0 || bucket.served || bucket.table)
      continue;
    if (c.buckets[b].compute >= 0) continue;  // both the f32 weights and their bf16 copy would have to be updated
    if (bucket.gradient_type != DType::f32) continue;
    const Writers writers = find_writers(c, users, c.buckets[b]);
    if (writers.at.size() != c.buckets[b].plan->parameters.size()) continue;
    for (size_t i : writers.at) take_the_step(c.code[i], c.buckets[b].weights);
    c.buffers[c.buckets[b].gradients].bytes = 0;
    c.buckets[b].gradients = -1;
    bucket.updated_by_parts = true;
    removed.push_back(writers.update);
  }
  std::sort(removed.rbegin(), removed.rend());
  for (size_t i : removed) c.code.erase(c.code.begin() + static_cast<std::ptrdiff_t>(i));
}

}  // namespace trainctl
