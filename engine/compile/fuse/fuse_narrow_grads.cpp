// The gradients of input and weight of a dense layer with few input features, as the second one of an adapter, read the
// same dy, which is nearly all that they read. One kernel (matmul/narrow_grads.h) computes both, and the scale of the
// input's gradient.
#include <algorithm>

#include "engine/compile/fuse/inlined_values.h"
#include "engine/compile/fuse/join_instructions.h"
#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/ops/elementwise/expression.h"
#include "engine/ops/matmul/narrow_grads.h"
#include "engine/ops/named_ops.h"

namespace trainctl {

extern const OpDef matmul_weight_grad_op;

namespace {

/// Elements of dy from which reading it once saves more than another launch takes.
constexpr int64_t kWorthOnePass = int64_t{1} << 22;

bool has_epilogue(const VirtualInstruction& v) {
  const Epilogue e = epilogue_of(v.code.attrs);
  return e.bias || e.residual || e.keep_input || e.bias_grad || e.descend || e.activation != Activation::none ||
         e.slope != Activation::none;
}

/// dx = dy w, with few columns.
bool is_narrow_input_grad(const VirtualInstruction& v) {
  return is_kernel(v, matmul_op.kernel) && v.inputs.size() == 2 && v.outputs.size() == 1 && !v.code.idle &&
         !v.code.outputs[0].accumulate && !has_epilogue(v) && !v.code.attrs.flag("transpose_a") &&
         !v.code.attrs.flag("transpose_b") && !v.code.attrs.flag("tf32") && v.code.inputs[1].shape.size() == 2 &&
         v.code.outputs[0].shape.back() <= kMostLowRank && v.code.outputs[0].dtype == v.code.inputs[0].dtype &&
         num_elements(v.code.inputs[0].shape) >= kWorthOnePass;
}

/// dw = dy^T x, of the same layer and task.
bool is_weight_grad_of(const VirtualInstruction& v, const VirtualInstruction& dx) {
  if (!is_kernel(v, matmul_weight_grad_op.kernel) || v.outputs.size() != 1 || v.code.idle || has_epilogue(v) ||
      v.code.attrs.flag("kn") || v.code.attrs.has("first_row") || v.inputs[1] != dx.inputs[0])
    return false;
  const Operand &dy = v.code.inputs[1], &same = dx.code.inputs[0];
  return dy.offset == same.offset && dy.shape == same.shape && v.code.inputs[0].shape == dx.code.outputs[0].shape &&
         v.code.inputs[0].dtype == dy.dtype && v.code.outputs[0].shape == dx.code.inputs[1].shape &&
         v.code.phase == dx.code.phase && v.code.micro_batch == dx.code.micro_batch && v.code.chunk == dx.code.chunk &&
         v.code.weight_gradients == dx.code.weight_gradients && v.code.recompute == dx.code.recompute;
}

/// The factor if it only multiplies by one.
std::optional<double> factor_of(const VirtualInstruction& v) {
  const KernelDef* kernel = kernel_of(v.code);
  if (kernel == nullptr || kernel->element == nullptr || v.inputs.size() != 1 || v.outputs.size() != 1 || v.code.idle ||
      v.code.outputs[0].accumulate)
    return std::nullopt;
  const std::string token = kernel->element(v.code.attrs);
  const std::vector<ElementwiseToken> tokens = parse_expression("x0 " + token + " =0");
  if (tokens.size() != 3 || tokens[1].op != ElementwiseOp::unary || tokens[1].function != Unary::scale ||
      tokens[1].parameters.b != 0)
    return std::nullopt;
  return v.code.attrs.number("factor");
}

/// If only a scale reads the first output of `grads`, that writes the scale's.
void take_scale(Compiler& c, size_t grads) {
  VirtualInstruction& v = c.code[grads];
  const BufferId dx = v.outputs[0];
  if (is_persistent(c.buffers[dx].kind)) return;
  std::vector<size_t> users;
  for (size_t i = 0; i < c.code.size(); ++i)
    if (i != grads && (names(c.code[i].inputs, dx) || names(c.code[i].outputs, dx))) users.push_back(i);
  if (users.size() != 1 || users[0] < grads) return;
  const VirtualInstruction& scale = c.code[users[0]];
  const std::optional<double> factor = factor_of(scale);
  if (!factor || scale.code.inputs[0].shape != v.code.outputs[0].shape ||
      scale.code.micro_batch != v.code.micro_batch || !can_move(c, scale, users[0], grads))
    return;
  v.outputs[0] = scale.outputs[0];
  v.code.outputs[0] = scale.code.outputs[0];
  v.code.attrs.set("factor", *factor);
  mark_removed(c, users[0]);
}

/// The input's gradient at `dx` becomes that of both.
void join_narrow_grads(Compiler& c, size_t dx, size_t dw) {
  VirtualInstruction& both = c.code[dx];
  both.inputs.push_back(c.code[dw].inputs[0]);
  both.code.inputs.push_back(c.code[dw].code.inputs[0]);
  both.code.op = narrow_grads_kernel.name;
  both.code.attrs = {};
  join_outputs(c, dw, dx, dx);
  take_scale(c, dx);
}

}  // namespace

void fuse_narrow_grads(Compiler& c) {
  std::vector<std::vector<size_t>> of_dy(c.buffers.size());  // the gradients of inputs that are computed from it
  for (size_t i = 0; i < c.code.size(); ++i)
    if (is_narrow_input_grad(c.code[i])) of_dy[static_cast<size_t>(c.code[i].inputs[0])].push_back(i);
  for (size_t dw = 0; dw < c.code.size(); ++dw) {
    if (c.code[dw].inputs.size() != 2) continue;
    std::vector<size_t>& candidates = of_dy[static_cast<size_t>(c.code[dw].inputs[1])];
    const auto found = std::ranges::find_if(candidates, [&](size_t dx) {
      return is_weight_grad_of(c.code[dw], c.code[dx]) && can_move(c, c.code[dw], dw, dx);
    });
    if (found == candidates.end()) continue;
    join_narrow_grads(c, *found, dw);
    candidates.erase(found);
  }
  remove_marked(c);
}

}  // namespace trainctl
