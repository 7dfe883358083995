// Ops that follow a matmul become its epilogue, if no other instruction reads the values in between:
//   matmul -> add_bias (-> relu or gelu)      gelu's input is also written if its backward reads it
//   matmul -> relu_grad or gelu_grad          the gradient of a layer's input, through the preceding activation
// relu's backward reads relu's output, so only the last value has to be kept.
#include <algorithm>
#include <optional>

#include "engine/compile/conflicts.h"
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

/// True if the matmul may move down to `later`: its output is not read before, and its inputs stay unchanged.
bool can_wait(const Compiler& c, int matmul, int later) {
  const VirtualInstruction& m = c.code[matmul];
  for (int i = matmul + 1; i < later; ++i) {
    if (names(c.code[i].inputs, m.outputs[0])) return false;
    for (BufferId written : c.code[i].outputs)
      if (names(m.inputs, written)) return false;
  }
  return true;
}

/// True if the op after a matmul may move up to it: its other inputs are ready, and its output's buffer is free.
bool can_come_first(const Compiler& c, int matmul, int after) {
  const VirtualInstruction& v = c.code[after];
  for (int i = matmul + 1; i < after; ++i) {
    for (BufferId made : v.outputs)
      if (names(c.code[i].inputs, made) || names(c.code[i].outputs, made)) return false;
    for (BufferId written : c.code[i].outputs)
      if (names(v.inputs, written)) return false;
  }
  return true;
}

/// The product's epilogue extended by the next op; empty if there is no such form.
std::optional<Epilogue> with_step(const VirtualInstruction& product, const VirtualInstruction& after, bool read_again) {
  const EpilogueRole role = epilogue_role(after);
  Epilogue e = epilogue_of(product.code.attrs);
  if (e.activation != Activation::none || e.slope != Activation::none) return std::nullopt;
  if (role.step == EpilogueStep::none || !kernel_of(product.code)->takes_step(role.step)) return std::nullopt;
  if (role.step == EpilogueStep::activation) {
    if (read_again && role.activation == Activation::relu) return std::nullopt;  // relu's backward reads relu's output
    e.activation = role.activation;
    e.keep_input = read_again;
    return e;
  }
  if (read_again || e.bias) return std::nullopt;
  if (role.step == EpilogueStep::bias) e.bias = true;
  if (role.step == EpilogueStep::slope) e.slope = role.activation;
  return e;
}

struct Found {
  int matmul = -1;
  Epilogue epilogue;
  int place = -1;  ///< of the fused instruction: that of the matmul or of the following op
};

/// The matmul that writes input 0 of instruction `at`, and the epilogue of the two fused.
std::optional<Found> matmul_before(const Compiler& c, const std::vector<Uses>& uses, int at) {
  const VirtualInstruction& v = c.code[at];
  if (v.code.opcode != Opcode::kernel || v.inputs.empty()) return std::nullopt;
  const BufferId between = v.inputs[0];
  const Uses& u = uses[between];
  if (is_persistent(c.buffers[between].kind) || u.writes != 1 || u.writer >= at) return std::nullopt;
  const VirtualInstruction& matmul = c.code[u.writer];
  const KernelDef* kernel = kernel_of(matmul.code);
  const bool fits = kernel != nullptr && kernel->takes_step(EpilogueStep::activation) &&
                    matmul.code.outputs.size() == 1 && !matmul.code.outputs[0].accumulate &&
                    matmul.code.outputs[0].shape == v.code.inputs[0].shape &&
                    matmul.code.outputs[0].dtype == v.code.outputs[0].dtype;
  const std::optional<Epilogue> epilogue = fits ? with_step(matmul, v, u.reads > 1) : std::nullopt;
  if (!epilogue) return std::nullopt;
  // Prefer the early place: an update of the weights that the matmul reads may directly follow it.
  if (can_come_first(c, u.writer, at)) return Found{u.writer, *epilogue, u.writer};
  if (can_wait(c, u.writer, at)) return Found{u.writer, *epilogue, at};
  return std::nullopt;
}

/// Fuses the two at `place`; the other instruction is marked for removal.
void join(Compiler& c, const Found& found, int after) {
  VirtualInstruction fused = std::move(c.code[found.matmul]);
  VirtualInstruction last = std::move(c.code[after]);
  if (found.epilogue.keep_input) {
    last.outputs.push_back(fused.outputs[0]);
    last.code.outputs.push_back(std::move(fused.code.outputs[0]));
  }
  fused.outputs = std::move(last.outputs);
  fused.code.outputs = std::move(last.code.outputs);
  fused.code.name = std::move(last.code.name);
  if (last.inputs.size() > 1) {  // the bias, or the point at which the slope is taken
    fused.inputs.push_back(last.inputs[1]);
    fused.code.inputs.push_back(std::move(last.code.inputs[1]));
  }
  set_epilogue(fused.code.attrs, found.epilogue);
  VirtualInstruction& other = c.code[found.place == after ? found.matmul : after];
  other = {};
  other.code.opcode = Opcode::wait;  // removed below
  c.code[found.place] = std::move(fused);
}

}  // namespace

void fuse_matmul(Compiler& c) {
  std::vector<Uses> uses = count_uses(c);
  for (int i = 0; i < static_cast<int>(c.code.size()); ++i) {
    const auto found = matmul_before(c, uses, i);
    if (!found) continue;
    join(c, *found, i);
    for (BufferId made : c.code[found->place].outputs) uses[made].writer = found->place;
  }
  std::erase_if(c.code, [](const VirtualInstruction& v) { return v.code.opcode == Opcode::wait; });
}

}  // namespace trainctl
