// A relu in the epilogue of batch_norm has no gradient kernel of its own: batch_norm's gradients take dy behind the
// relu and find from x where relu gave 0 (KernelDef::inputs_behind_relu). So relu's result is not read again, and the
// gradient before the relu is neither written nor read. Only if no other kernel reads that gradient: a residual's does.
#include <algorithm>
#include <vector>

#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// For each buffer, the indices of the instructions that read it and of those that write it, ascending.
struct ReluUsers {
  std::vector<std::vector<size_t>> readers, writers;

  explicit ReluUsers(const Compiler& c) : readers(c.buffers.size()), writers(c.buffers.size()) {
    for (size_t i = 0; i < c.code.size(); ++i) {
      for (const BufferId buffer : c.code[i].inputs) add(readers[buffer], i);
      for (const BufferId buffer : c.code[i].outputs) add(writers[buffer], i);
    }
  }
  static void add(std::vector<size_t>& list, size_t i) {
    if (list.empty() || list.back() != i) list.push_back(i);
  }
  bool written_between(BufferId buffer, size_t from, size_t to) const {
    return std::any_of(writers[buffer].begin(), writers[buffer].end(), [&](size_t w) { return w > from && w < to; });
  }
};

/// The forward kernel's inputs are x, its mean and variance, and then the parameters.
constexpr int kParameters = 3;

/// True if gradient `g` belongs to the forward instruction: it reads the same x and statistics.
bool is_gradient_of(const VirtualInstruction& g, const VirtualInstruction& forward) {
  if (g.inputs.size() < 1 + kParameters) return false;
  for (size_t i = 0; i < kParameters; ++i) {
    if (g.inputs[1 + i] != forward.inputs[i] || g.code.inputs[1 + i].offset != forward.code.inputs[i].offset ||
        g.code.inputs[1 + i].shape != forward.code.inputs[i].shape)
      return false;
  }
  return true;
}

class ReluGradFusion {
 public:
  explicit ReluGradFusion(Compiler& c) : c_(c), users_(c), removed_(c.code.size(), false) {}

  void run() {
    for (size_t i = 0; i < c_.code.size(); ++i) {
      if (!takes_relu(c_.code[i])) continue;
      const Epilogue epilogue = epilogue_of(c_.code[i].code.attrs);
      if (epilogue.activation != Activation::relu || epilogue.residual) continue;
      for (const size_t reader : users_.readers[c_.code[i].outputs[0]])
        if (is_relu_grad_of(reader, i) && can_fuse(i, reader)) fuse(i, reader);
    }
    size_t index = 0;
    std::erase_if(c_.code, [&](const VirtualInstruction&) { return removed_[index++]; });
  }

 private:
  static bool takes_relu(const VirtualInstruction& v) {
    const KernelDef* kernel = kernel_of(v.code);
    return kernel != nullptr && kernel->takes_step(EpilogueStep::relu) && v.outputs.size() == 1;
  }

  bool is_relu_grad_of(size_t grad, size_t forward) const {
    const VirtualInstruction& v = c_.code[grad];
    const EpilogueRole role = epilogue_role(v);
    return role.step == EpilogueStep::slope && role.activation == Activation::relu && v.inputs.size() == 2 &&
           v.inputs[1] == c_.code[forward].outputs[0] && v.inputs[0] != v.inputs[1] &&
           v.code.inputs[1].shape == c_.code[forward].code.outputs[0].shape &&
           v.code.inputs[0].shape == v.code.inputs[1].shape;
  }

  /// True if every reader of the relu's gradient (`grad`) can instead read dy, the gradient behind the relu, and find
  /// itself where the relu gave 0. Then dy and the parameters of the norm stay in memory until these readers run.
  bool can_fuse(size_t forward, size_t grad) const {
    const VirtualInstruction &f = c_.code[forward], &v = c_.code[grad];
    const BufferId before = v.outputs[0];
    if (is_persistent(c_.buffers[before].kind) || users_.writers[before].size() != 1) return false;
    for (size_t i = kParameters; i < f.inputs.size(); ++i)
      if (!is_persistent(c_.buffers[f.inputs[i]].kind)) return false;  // gathered weights would be kept for this
    for (const size_t reader : users_.readers[before]) {
      const VirtualInstruction& r = c_.code[reader];
      const KernelDef* kernel = kernel_of(r.code);
      if (kernel == nullptr || kernel->inputs_behind_relu == 0 || reader < grad || r.inputs[0] != before ||
          std::count(r.inputs.begin(), r.inputs.end(), before) != 1 || r.code.attrs.flag("behind_relu") ||
          !is_gradient_of(r, f) || users_.written_between(v.inputs[0], grad, reader))
        return false;
      for (size_t i = kParameters; i < f.inputs.size(); ++i)
        if (users_.written_between(f.inputs[i], forward, reader)) return false;
    }
    return !users_.readers[before].empty();
  }

  /// Lets the readers of relu's gradient read dy itself, with attr behind_relu and the forward norm's parameters, and
  /// removes the relu's gradient.
  void fuse(size_t forward, size_t grad) {
    const VirtualInstruction &f = c_.code[forward], &v = c_.code[grad];
    for (const size_t reader : users_.readers[v.outputs[0]]) {
      VirtualInstruction& r = c_.code[reader];
      r.inputs[0] = v.inputs[0];
      r.code.inputs[0] = v.code.inputs[0];
      r.code.attrs.set("behind_relu", true);
      r.inputs.resize(kernel_of(r.code)->inputs_behind_relu);
      r.code.inputs.resize(r.inputs.size());
      r.inputs.insert(r.inputs.end(), f.inputs.begin() + kParameters, f.inputs.end());
      r.code.inputs.insert(r.code.inputs.end(), f.code.inputs.begin() + kParameters, f.code.inputs.end());
    }
    removed_[grad] = true;
  }

  Compiler& c_;
  ReluUsers users_;
  std::vector<bool> removed_;
};

}  // namespace

void fuse_relu_grad(Compiler& c) { ReluGradFusion(c).run(); }

}  // namespace trainctl
