// Plain SGD without a gradient: where one kernel makes the only contribution to a parameter's gradient, and
// nobody reads the parameter after it, that kernel takes the step itself, W += -learning_rate * dW. The
// gradient is then never written or read, and takes no memory.
#include <algorithm>
#include <vector>

#include "engine/compile/passes.h"

namespace trainctl {
namespace {

bool overlaps(const Operand& a, const Operand& b) {
  return a.offset < b.offset + b.bytes() && b.offset < a.offset + a.bytes();
}

bool reads(const VirtualInstruction& v, BufferId buffer, const Operand& range) {
  for (size_t i = 0; i < v.inputs.size(); ++i)
    if (v.inputs[i] == buffer && overlaps(v.code.inputs[i], range)) return true;
  return false;
}

bool names(const std::vector<BufferId>& buffers, BufferId buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

/// The instructions that write the bucket's gradients, and the one that uses them; no writers where the
/// kernels cannot take the step.
struct Writers {
  std::vector<size_t> at;
  size_t update = 0;
};

Writers find_writers(const Compiler& c, const RankBucket& bucket) {
  Writers found;
  bool fits = true;
  for (size_t i = 0; i < c.code.size() && fits; ++i) {
    const VirtualInstruction& v = c.code[i];
    if (names(v.inputs, bucket.gradients)) {
      fits = is_update(v.code);
      found.update = i;
    }
    if (!names(v.outputs, bucket.gradients)) continue;
    const KernelDef* kernel = kernel_of(v.code);
    fits = fits && kernel != nullptr && kernel->takes_step(EpilogueStep::descend) && v.outputs.size() == 1 &&
           !v.code.outputs[0].accumulate;
    for (size_t later = i + 1; later < c.code.size() && fits; ++later)  // weights lie as gradients do
      fits = !reads(c.code[later], bucket.weights, v.code.outputs[0]);
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
  if (!c.trains() || !c.optimizer.is_plain_step() || c.spec.optimizer.clip_norm != 0) return;
  std::vector<size_t> removed;
  for (size_t b = 0; b < c.buckets.size(); ++b) {
    Bucket& bucket = c.program.buckets[b];
    if (!c.buckets[b].plan->updated || bucket.level != 0 || bucket.reduce_group >= 0) continue;
    if (c.buckets[b].compute >= 0) continue;  // both the f32 weights and their bf16 copy would have to be stepped
    if (bucket.gradient_type != DType::f32) continue;
    const Writers writers = find_writers(c, c.buckets[b]);
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
