// In a dense layer with few input features, such as the second layer of an adapter, the gradients of input and weight
// both read dy, which is nearly all that they read. One kernel (matmul/skinny_products.h) computes both, and the scale
// of the input's gradient.
#include <algorithm>

#include "engine/compile/fuse/inlined_values.h"
#include "engine/compile/fuse/join_instructions.h"
#include "engine/compile/fuse/skinny_products.h"
#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/ops/elementwise/expression.h"
#include "engine/ops/matmul/skinny_products.h"
#include "engine/ops/named_ops.h"

namespace trainctl {
namespace {

/// True if `v` computes dx = dy w, where dx has few columns.
bool is_skinny_input_grad(const VirtualInstruction& v) {
  return is_plain_product(v, matmul_op.kernel) && !v.code.outputs[0].accumulate && !v.code.attrs.flag("transpose_a") &&
         !v.code.attrs.flag("transpose_b") && v.code.inputs[1].shape.size() == 2 &&
         v.code.outputs[0].shape.back() <= kMostLowRank && v.code.outputs[0].dtype == v.code.inputs[0].dtype &&
         is_large(v.code.inputs[0]);
}

/// True if `v` computes dw = dy^T x for the same layer and in the same task as `dx`.
bool is_weight_grad_of(const VirtualInstruction& v, const VirtualInstruction& dx) {
  if (!is_plain_product(v, matmul_weight_grad_op.kernel) || v.code.attrs.flag("kn") || v.code.attrs.has("first_row") ||
      v.inputs[1] != dx.inputs[0])
    return false;
  const Operand &dy = v.code.inputs[1], &same = dx.code.inputs[0];
  return dy.offset == same.offset && dy.shape == same.shape && v.code.inputs[0].shape == dx.code.outputs[0].shape &&
         v.code.inputs[0].dtype == dy.dtype && v.code.outputs[0].shape == dx.code.inputs[1].shape &&
         in_one_task(v.code, dx.code);
}

/// Returns the factor if `v` only multiplies its input by a constant factor.
std::optional<double> factor_of(const VirtualInstruction& v) {
  const KernelDef* kernel = kernel_of(v.code);
  if (kernel == nullptr || kernel->element == nullptr || v.inputs.size() != 1 || v.outputs.size() != 1 || v.code.idle ||
      v.code.outputs[0].accumulate)
    return std::nullopt;
  const std::vector<ElementwiseToken> tokens = parse_expression("x0 " + kernel->element(v.code.attrs) + " =0");
  if (tokens.size() != 3 || tokens[1].op != ElementwiseOp::unary || tokens[1].function != Unary::scale ||
      tokens[1].parameters.b != 0)
    return std::nullopt;
  return v.code.attrs.number("factor");
}

/// Returns the index of the instruction that multiplies output `output` of instruction `at` by a constant, if nothing
/// else reads this output and the multiplication can move up to `at`.
std::optional<size_t> scale_of(const Compiler& c, size_t at, size_t output) {
  const BufferId made = c.code[at].outputs[output];
  if (is_persistent(c.buffers[made].kind)) return std::nullopt;
  std::optional<size_t> only;
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (i == at || (!names(c.code[i].inputs, made) && !names(c.code[i].outputs, made))) continue;
    if (only || i < at) return std::nullopt;
    only = i;
  }
  if (!only) return std::nullopt;
  const VirtualInstruction& scale = c.code[*only];
  const bool fits = factor_of(scale) && scale.code.inputs[0].shape == c.code[at].code.outputs[output].shape &&
                    scale.code.outputs[0].dtype == c.code[at].code.outputs[output].dtype &&
                    in_one_task(scale.code, c.code[at].code);
  if (!fits) return std::nullopt;
  for (size_t i = at + 1; i < *only; ++i)
    if (conflict(scale, c.code[i])) return std::nullopt;
  return only;
}

/// Replaces the instruction at `dx` by one that computes both gradients.
void join_skinny_grads(Compiler& c, size_t dx, size_t dw) {
  VirtualInstruction& both = c.code[dx];
  both.inputs.push_back(c.code[dw].inputs[0]);
  both.code.inputs.push_back(c.code[dw].code.inputs[0]);
  both.code.op = skinny_grads_kernel.name;
  both.code.attrs = {};
  join_outputs(c, dw, dx, dx);
  take_scales(c, dx, 1);
}

}  // namespace

bool is_large(const Operand& operand) {
  constexpr int64_t kLarge = int64_t{1} << 22;
  return num_elements(operand.shape) >= kLarge;
}

bool is_plain_product(const VirtualInstruction& v, const KernelDef& kernel) {
  const Epilogue e = epilogue_of(v.code.attrs);
  return is_kernel(v, kernel) && v.inputs.size() == 2 && v.outputs.size() == 1 && !v.code.idle &&
         !v.code.attrs.flag("tf32") && !e.keep_input && !e.bias_grad && !e.descend &&
         e.activation == Activation::none && e.slope == Activation::none;
}

bool in_one_task(const Instruction& a, const Instruction& b) {
  return a.phase == b.phase && a.micro_batch == b.micro_batch && a.chunk == b.chunk &&
         a.weight_gradients == b.weight_gradients && a.recompute == b.recompute;
}

void take_scales(Compiler& c, size_t at, size_t count) {
  std::vector<size_t> scales;
  for (size_t output = 0; output < count; ++output) {
    const std::optional<size_t> scale = scale_of(c, at, output);
    if (!scale || (!scales.empty() && factor_of(c.code[*scale]) != factor_of(c.code[scales[0]]))) return;
    scales.push_back(*scale);
  }
  c.code[at].code.attrs.set("factor", *factor_of(c.code[scales[0]]));
  for (size_t output = 0; output < count; ++output) {
    c.code[at].outputs[output] = c.code[scales[output]].outputs[0];
    c.code[at].code.outputs[output] = c.code[scales[output]].code.outputs[0];
    mark_removed(c, scales[output]);
  }
}

void fuse_skinny_grads(Compiler& c) {
  std::vector<std::vector<size_t>> of_dy(c.buffers.size());  // the gradients of inputs that are computed from it
  for (size_t i = 0; i < c.code.size(); ++i)
    if (is_skinny_input_grad(c.code[i])) of_dy[static_cast<size_t>(c.code[i].inputs[0])].push_back(i);
  for (size_t dw = 0; dw < c.code.size(); ++dw) {
    if (c.code[dw].inputs.size() != 2) continue;
    std::vector<size_t>& candidates = of_dy[static_cast<size_t>(c.code[dw].inputs[1])];
    const auto found = std::ranges::find_if(candidates, [&](size_t dx) {
      return is_weight_grad_of(c.code[dw], c.code[dx]) && can_move(c, c.code[dw], dw, dx);
    });
    if (found == candidates.end()) continue;
    join_skinny_grads(c, *found, dw);
    candidates.erase(found);
  }
  remove_marked(c);
}

}  // namespace trainctl
