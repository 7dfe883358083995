// Ops that follow a product become its epilogue, if its kernel takes them (KernelDef::takes) and no other instruction
// reads the values in between. So do those that follow batch_norm:
//   conv2d -> add_bias (-> relu or gelu)              gelu's input is also written if its backward reads it
//   matmul (-> add_bias) (-> add) (-> relu or gelu)   add takes another tensor of that size: a residual
//   batch_norm (-> add) (-> relu)
//   layer_norm_grad, rms_norm_grad -> add             the gradient that reaches the norm's input by the residual
//   matmul -> relu_grad or gelu_grad                  the gradient of a layer's input, through the preceding activation
// relu's backward reads relu's output, so only the last value has to be kept.
#include <algorithm>
#include <optional>

#include "engine/compile/fuse/inlined_values.h"
#include "engine/compile/fuse/join_instructions.h"
#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

struct Uses {
  int writer = -1, writes = 0;
  int reads = 0;
};

std::vector<Uses> count_uses(const Compiler& c) {
  std::vector<Uses> uses(c.buffers.size());
  for (size_t i = 0; i < c.code.size(); ++i) {
    for (BufferId b : c.code[i].inputs) ++uses[b].reads;
    for (BufferId b : c.code[i].outputs) {
      uses[b].writer = static_cast<int>(i);
      ++uses[b].writes;
    }
  }
  return uses;
}

/// True if the product may move down to instruction `later`: until there, nothing reads its output or changes its
/// inputs.
bool can_wait(const Compiler& c, int product, int later) {
  const VirtualInstruction& m = c.code[product];
  for (int i = product + 1; i < later; ++i) {
    if (names(c.code[i].inputs, m.outputs[0])) return false;
    for (BufferId written : c.code[i].outputs)
      if (names(m.inputs, written)) return false;
  }
  return true;
}

/// True if the op after a product may move up to it: its other inputs are ready, and its output's buffer is free.
bool can_come_first(const Compiler& c, int product, int after) {
  const VirtualInstruction& v = c.code[after];
  for (int i = product + 1; i < after; ++i) {
    for (BufferId made : v.outputs)
      if (names(c.code[i].inputs, made) || names(c.code[i].outputs, made)) return false;
    for (BufferId written : c.code[i].outputs)
      if (names(v.inputs, written)) return false;
  }
  return true;
}

/// Returns the dim of the product's output along which a bias in its epilogue varies.
int bias_dim(const VirtualInstruction& product) {
  const KernelDef* kernel = kernel_of(product.code);
  const int last = static_cast<int>(product.code.outputs[0].shape.size()) - 1;
  return kernel->channel_dim == nullptr ? last : kernel->channel_dim(product.code.attrs);
}

bool is_step_of_products(EpilogueStep step) {
  return step == EpilogueStep::bias || step == EpilogueStep::activation || step == EpilogueStep::slope ||
         step == EpilogueStep::residual;
}

bool takes(const KernelDef& kernel, const EpilogueRole& role) {
  return kernel.takes_step(role.step) || (role.step == EpilogueStep::activation &&
                                          role.activation == Activation::relu && kernel.takes_step(EpilogueStep::relu));
}

/// The product's epilogue extended by the next op; empty if there is no such form.
std::optional<Epilogue> with_step(const VirtualInstruction& product, const VirtualInstruction& after, bool read_again) {
  const EpilogueRole role = epilogue_role(after);
  if (!is_step_of_products(role.step) || !takes(*kernel_of(product.code), role)) return std::nullopt;
  Epilogue e = epilogue_of(product.code.attrs);
  if (e.activation != Activation::none || e.slope != Activation::none) return std::nullopt;
  if (role.step == EpilogueStep::activation) {
    if (read_again && role.activation == Activation::relu) return std::nullopt;  // relu's backward reads relu's output
    e.activation = role.activation;
    e.keep_input = read_again;
    return e;
  }
  if (read_again || e.residual) return std::nullopt;
  if (role.step == EpilogueStep::residual) {
    e.residual = true;
    return e;
  }
  if (e.bias) return std::nullopt;
  if (role.step == EpilogueStep::bias) {
    const int last = static_cast<int>(product.code.outputs[0].shape.size()) - 1;
    if (bias_dim(product) != (role.dim < 0 ? last : role.dim)) return std::nullopt;
    e.bias = true;
  }
  if (role.step == EpilogueStep::slope) e.slope = role.activation;
  return e;
}

struct Found {
  int product = -1;
  Epilogue epilogue;
  int place = -1;    ///< place of the fused instruction: that of the product or that of the following op
  size_t input = 0;  ///< input of the following op that is the product's result
};

/// The product that writes that input of instruction `at`, and the epilogue of the two fused.
std::optional<Found> product_of(const Compiler& c, const std::vector<Uses>& uses, int at, size_t input) {
  const VirtualInstruction& v = c.code[at];
  const BufferId between = v.inputs[input];
  const Uses& u = uses[between];
  if (is_persistent(c.buffers[between].kind) || u.writes != 1 || u.writer >= at) return std::nullopt;
  const VirtualInstruction& product = c.code[u.writer];
  const KernelDef* kernel = kernel_of(product.code);
  const bool fits = kernel != nullptr && kernel->takes != 0 && product.code.outputs.size() == 1 &&
                    !product.code.outputs[0].accumulate && !v.code.outputs.empty() &&
                    product.code.outputs[0].shape == v.code.inputs[input].shape &&
                    product.code.outputs[0].dtype == v.code.outputs[0].dtype;
  const std::optional<Epilogue> epilogue = fits ? with_step(product, v, u.reads > 1) : std::nullopt;
  if (!epilogue) return std::nullopt;
  // Prefer the early place: an update of the weights that the product reads may directly follow it.
  if (can_come_first(c, u.writer, at)) return Found{u.writer, *epilogue, u.writer, input};
  if (can_wait(c, u.writer, at)) return Found{u.writer, *epilogue, at, input};
  return std::nullopt;
}

/// True if all instructions that read the buffer after `at` are element-wise, and none of them will become part of the
/// epilogue of a product.
bool only_elements_read(const Compiler& c, const std::vector<Uses>& uses, BufferId buffer, int at) {
  for (int i = at + 1; i < static_cast<int>(c.code.size()); ++i) {
    const VirtualInstruction& v = c.code[i];
    if (!names(v.inputs, buffer)) continue;
    const KernelDef* kernel = kernel_of(v.code);
    if (kernel == nullptr || kernel->element == nullptr) return false;
    if (epilogue_role(v).step != EpilogueStep::residual) continue;
    if (product_of(c, uses, i, v.inputs[0] == buffer ? 1 : 0)) return false;
  }
  return true;
}

/// Finds the product whose epilogue the op at `at` joins. A sum of two tensors of one size may join the product that
/// writes either tensor. The later of the two products is preferred, because it need not move. An exception is a
/// low-rank product, such as that of an adapter. If element-wise ops read the sum, the low-rank product takes it, and
/// these ops can compute both (fuse_elementwise). Otherwise the other product takes the sum: the time of a low-rank
/// product is the time of its memory traffic, and without the sum it only writes its output and reads no second tensor.
std::optional<Found> product_before(const Compiler& c, const std::vector<Uses>& uses, int at) {
  const VirtualInstruction& v = c.code[at];
  if (v.code.opcode != Opcode::kernel || v.inputs.empty()) return std::nullopt;
  if (epilogue_role(v).step != EpilogueStep::residual) return product_of(c, uses, at, 0);
  const Shape& sum = v.code.outputs[0].shape;
  if (v.code.inputs[0].shape != sum || v.code.inputs[1].shape != sum) return std::nullopt;
  const std::optional<Found> first = product_of(c, uses, at, 0), second = product_of(c, uses, at, 1);
  if (!first || !second) return first ? first : second;
  const bool narrow = is_low_rank_product(c.code[first->product]);
  if (narrow == is_low_rank_product(c.code[second->product])) return first->product > second->product ? first : second;
  return narrow == only_elements_read(c, uses, v.outputs[0], at) ? first : second;
}

/// Replaces the product and the op `after` by one instruction at Found::place. The other instruction is marked for
/// removal.
void join_epilogue(Compiler& c, const Found& found, int after) {
  VirtualInstruction fused = std::move(c.code[found.product]);
  VirtualInstruction last = std::move(c.code[after]);
  if (found.epilogue.keep_input) {
    last.outputs.push_back(fused.outputs[0]);
    last.code.outputs.push_back(std::move(fused.code.outputs[0]));
  }
  fused.outputs = std::move(last.outputs);
  fused.code.outputs = std::move(last.code.outputs);
  fused.code.name = std::move(last.code.name);
  if (last.inputs.size() > 1) {  // the bias, the residual, or the point at which the slope is taken
    fused.inputs.push_back(last.inputs[1 - found.input]);
    fused.code.inputs.push_back(std::move(last.code.inputs[1 - found.input]));
  }
  set_epilogue(fused.code.attrs, found.epilogue);
  mark_removed(c, static_cast<size_t>(found.place == after ? found.product : after));
  c.code[found.place] = std::move(fused);
}

}  // namespace

void fuse_products(Compiler& c) {
  std::vector<Uses> uses = count_uses(c);
  for (int i = 0; i < static_cast<int>(c.code.size()); ++i) {
    const auto found = product_before(c, uses, i);
    if (!found) continue;
    join_epilogue(c, *found, i);
    for (BufferId made : c.code[found->place].outputs) uses[made].writer = found->place;
  }
  remove_marked(c);
}

}  // namespace trainctl
