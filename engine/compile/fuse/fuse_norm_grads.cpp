// The gradients of a norm's input and of its parameters read the same dy, x and statistics. One kernel computes all of
// them; those of the parameters are its outputs 1 and 2.
#include <algorithm>

#include "engine/compile/fuse/join_instructions.h"
#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

bool takes_parameter_grads(const VirtualInstruction& v) {
  const KernelDef* kernel = kernel_of(v.code);
  return kernel != nullptr && kernel->takes_step(EpilogueStep::parameter_grads) && v.outputs.size() == 1;
}

/// True if both gradients belong to the same norm: the inputs of the parameters' gradient are the first inputs of the
/// input's gradient.
bool same_norm(const VirtualInstruction& of_parameters, const VirtualInstruction& of_input) {
  if (of_parameters.inputs.size() > of_input.inputs.size()) return false;
  for (size_t i = 0; i < of_parameters.inputs.size(); ++i) {
    const Operand &a = of_parameters.code.inputs[i], &b = of_input.code.inputs[i];
    if (of_parameters.inputs[i] != of_input.inputs[i] || a.offset != b.offset || a.shape != b.shape) return false;
  }
  return true;
}

void join_norm_grads(Compiler& c, size_t parameters, size_t input, size_t place) {
  Epilogue epilogue = epilogue_of(c.code[input].code.attrs);
  epilogue.parameter_grads = true;
  set_epilogue(c.code[input].code.attrs, epilogue);
  join_outputs(c, parameters, input, place);
}

}  // namespace

/// Joins the gradients of a norm's parameters and of its input into one kernel where both read the same dy.
void fuse_norm_grads(Compiler& c) {
  std::vector<std::vector<size_t>> of_dy(c.buffers.size());  // the gradients of inputs that are computed from it
  for (size_t i = 0; i < c.code.size(); ++i)
    if (takes_parameter_grads(c.code[i])) of_dy[static_cast<size_t>(c.code[i].inputs[0])].push_back(i);
  for (size_t parameters = 0; parameters < c.code.size(); ++parameters) {
    if (epilogue_role(c.code[parameters]).step != EpilogueStep::parameter_grads) continue;
    std::vector<size_t>& candidates = of_dy[static_cast<size_t>(c.code[parameters].inputs[0])];
    const auto found = std::find_if(candidates.begin(), candidates.end(),
                                    [&](size_t i) { return same_norm(c.code[parameters], c.code[i]); });
    if (found == candidates.end()) continue;
    const size_t input = *found;
    // Prefer the place of the input's gradient, which the rest of the backward pass waits for.
    if (can_move(c, c.code[parameters], parameters, input)) {
      join_norm_grads(c, parameters, input, input);
    } else if (can_move(c, c.code[input], input, parameters)) {
      join_norm_grads(c, parameters, input, parameters);
    } else {
      continue;
    }
    candidates.erase(found);
  }
  remove_marked(c);
}

}  // namespace trainctl
