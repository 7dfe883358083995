// Operations before the rounding of a factor become part of it, so that their results never reach memory in bf16:
//
//   a = gelu x        A = quantise a                  A = quantise gelu(x)
//   d = gelu_grad a x D = quantise d, b = bias_grad d     D, b = quantise a * slope(x), its sums over rows
//
// Two kinds of operations are fused: the sum over rows that is a bias's gradient, if it reads the same values as the
// rounding; and the activation, or the product with its slope, that computes these values, if nothing else reads them.
#include <algorithm>
#include <optional>

#include "engine/compile/fuse/join_instructions.h"
#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/ops/quantise/quantise.h"

namespace trainctl {
namespace {

/// Returns whether instruction `other` belongs to the same task as the rounding at `at` and may move there.
bool may_join(const Compiler& c, size_t other, size_t at) {
  const Instruction &a = c.code[other].code, &b = c.code[at].code;
  return a.micro_batch == b.micro_batch && a.phase == b.phase && a.recompute == b.recompute &&
         a.weight_gradients == b.weight_gradients && can_move(c, c.code[other], other, at);
}

class QuantiseFusion {
 public:
  explicit QuantiseFusion(Compiler& c) : c_(c), writers_(c.buffers.size()), readers_(c.buffers.size()) {
    for (size_t i = 0; i < c.code.size(); ++i) {
      for (BufferId b : c.code[i].inputs) readers_[static_cast<size_t>(b)].push_back(i);
      for (BufferId b : c.code[i].outputs) writers_[static_cast<size_t>(b)].push_back(i);
    }
  }

  void run() {
    for (size_t i = 0; i < c_.code.size(); ++i) {
      if (!is_kernel(c_.code[i], quantise_kernel) || c_.code[i].code.attrs.flag("squares")) continue;
      take_sum(i);
      take_activation(i);
    }
    remove_marked(c_);
  }

 private:
  static bool has_whole(const Operand& a, const Operand& b) {
    return a.offset == b.offset && a.bytes() == b.bytes() && a.shape.back() == b.shape.back() && a.dtype == b.dtype;
  }

  void remove(size_t at) {
    for (BufferId b : c_.code[at].inputs) std::erase(readers_[static_cast<size_t>(b)], at);
    mark_removed(c_, at);
  }

  /// The gradient of a bias that reads the same values.
  void take_sum(size_t at) {
    VirtualInstruction& rounding = c_.code[at];
    for (size_t r : readers_[static_cast<size_t>(rounding.inputs[0])]) {
      VirtualInstruction& sum = c_.code[r];
      const EpilogueRole role = epilogue_role(sum);
      const int last = sum.code.inputs.empty() ? -1 : static_cast<int>(sum.code.inputs[0].shape.size()) - 1;
      if (role.step != EpilogueStep::bias_grad || (role.dim >= 0 && role.dim != last) ||
          epilogue_of(sum.code.attrs).descend || !has_whole(sum.code.inputs[0], rounding.code.inputs[0]) ||
          !may_join(c_, r, at))
        continue;
      Epilogue epilogue = epilogue_of(rounding.code.attrs);
      epilogue.bias_grad = true;
      set_epilogue(rounding.code.attrs, epilogue);
      rounding.outputs.push_back(sum.outputs[0]);
      rounding.code.outputs.push_back(std::move(sum.code.outputs[0]));
      rounding.code.name += ", " + rounding.code.outputs.back().tensor;
      return remove(r);
    }
  }

  /// Fuses the activation that computes the rounded values into the rounding, if nothing else reads them.
  void take_activation(size_t at) {
    VirtualInstruction& rounding = c_.code[at];
    const auto between = static_cast<size_t>(rounding.inputs[0]);
    if (is_persistent(c_.buffers[between].kind) || writers_[between].size() != 1 || readers_[between].size() != 1)
      return;
    const size_t w = writers_[between][0];
    VirtualInstruction& activation = c_.code[w];
    const EpilogueRole role = epilogue_role(activation);
    const bool fits =
        (role.step == EpilogueStep::activation || role.step == EpilogueStep::slope) && activation.outputs.size() == 1 &&
        !activation.code.outputs[0].accumulate && w < at &&
        has_whole(activation.code.outputs[0], rounding.code.inputs[0]) &&
        std::all_of(activation.code.inputs.begin(), activation.code.inputs.end(), [&](const Operand& in) {
          return in.shape == activation.code.outputs[0].shape && in.dtype == rounding.code.inputs[0].dtype;
        });
    if (!fits || !may_join(c_, w, at)) return;
    Epilogue epilogue = epilogue_of(rounding.code.attrs);
    (role.step == EpilogueStep::slope ? epilogue.slope : epilogue.activation) = role.activation;
    set_epilogue(rounding.code.attrs, epilogue);
    rounding.inputs = activation.inputs;
    rounding.code.inputs = activation.code.inputs;
    remove(w);
    for (BufferId b : rounding.inputs) readers_[static_cast<size_t>(b)].push_back(at);
  }

  Compiler& c_;
  std::vector<std::vector<size_t>> writers_, readers_;  ///< by buffer
};

}  // namespace

void fuse_quantise(Compiler& c) {
  if (c.plan.numerics.fp8) QuantiseFusion(c).run();
}

}  // namespace trainctl
