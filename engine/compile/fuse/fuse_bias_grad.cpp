// The gradients of a layer's weight and bias read the same dy. One kernel computes both; the bias gradient is its
// output 1.
#include <algorithm>
#include <cstdlib>

#include "engine/compile/fuse/join_instructions.h"
#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

bool takes_bias_grad(const VirtualInstruction& v) {
  const KernelDef* kernel = kernel_of(v.code);
  return kernel != nullptr && kernel->is_product && kernel->takes_step(EpilogueStep::bias_grad);
}

/// True if the bias varies along the dim of dy that holds the layer's output features or channels.
bool same_dim(const VirtualInstruction& bias, const VirtualInstruction& weight) {
  const auto channel_dim = kernel_of(weight.code)->channel_dim;
  const int last = static_cast<int>(bias.code.inputs[0].shape.size()) - 1, dim = epilogue_role(bias).dim;
  return (dim < 0 ? last : dim) == (channel_dim == nullptr ? last : channel_dim(weight.code.attrs));
}

/// True if both gradients are computed from the same dy, and either both kernels apply the update or neither does.
bool belong_together(const VirtualInstruction& bias, const VirtualInstruction& weight) {
  const Operand &of_bias = bias.code.inputs[0], &of_weight = weight.code.inputs[1];
  return weight.outputs.size() == 1 && weight.inputs[1] == bias.inputs[0] && of_weight.offset == of_bias.offset &&
         of_weight.bytes() == of_bias.bytes() && of_weight.shape.back() == of_bias.shape.back() &&
         same_dim(bias, weight) && epilogue_of(weight.code.attrs).descend == epilogue_of(bias.code.attrs).descend;
}

/// Adds the output of the bias gradient to the kernel of the weight gradient, which is placed at `place`.
void join_bias_grad(Compiler& c, size_t bias, size_t weight, size_t place) {
  Instruction& both = c.code[weight].code;
  Epilogue epilogue = epilogue_of(both.attrs);
  epilogue.bias_grad = true;
  set_epilogue(both.attrs, epilogue);
  if (epilogue.descend) both.name += ", " + c.code[bias].code.outputs[0].tensor;
  join_outputs(c, bias, weight, place);
}

}  // namespace

void fuse_bias_grad(Compiler& c) {
  std::vector<std::vector<size_t>> weights(c.buffers.size());  // by dy: the weight gradients computed from it
  for (size_t i = 0; i < c.code.size(); ++i)
    if (takes_bias_grad(c.code[i])) weights[static_cast<size_t>(c.code[i].inputs[1])].push_back(i);
  for (size_t bias = 0; bias < c.code.size(); ++bias) {
    if (epilogue_role(c.code[bias]).step != EpilogueStep::bias_grad) continue;
    const std::vector<size_t>& of_dy = weights[static_cast<size_t>(c.code[bias].inputs[0])];
    const auto found =
        std::find_if(of_dy.begin(), of_dy.end(), [&](size_t i) { return belong_together(c.code[bias], c.code[i]); });
    if (found == of_dy.end()) continue;
    const size_t weight = *found;
    // Prefer the later place: the gradient of the layer's input, which the rest of the backward pass waits for, then
    // comes first.
    const size_t later = std::max(bias, weight), sooner = std::min(bias, weight);
    if (can_move(c, c.code[sooner], sooner, later)) {
      join_bias_grad(c, bias, weight, later);
    } else if (can_move(c, c.code[later], later, sooner)) {
      join_bias_grad(c, bias, weight, sooner);
    }
  }
  remove_marked(c);
}

}  // namespace trainctl
