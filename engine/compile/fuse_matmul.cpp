// matmul -> add_bias (-> relu) where nobody else reads what lies between. relu's backward takes its
// output, so only the last of them has to be kept.
#include <optional>

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

bool is_kernel(const VirtualInstruction& v, std::string_view op) {
  return v.code.opcode == Opcode::kernel && v.code.op == op;
}

/// The matmul that makes input 0 of `v`, which is its only reader.
std::optional<int> matmul_before(const Compiler& c, const std::vector<Uses>& uses, const VirtualInstruction& v) {
  const BufferId between = v.inputs[0];
  const Uses& u = uses[between];
  if (is_persistent(c.buffers[between].kind) || u.reads != 1 || u.writes != 1) return std::nullopt;
  const VirtualInstruction& matmul = c.code[u.writer];
  const bool fits = is_kernel(matmul, "matmul") && !matmul.code.attrs.has("activation") &&
                    matmul.code.outputs[0].shape == v.code.inputs[0].shape;
  return fits ? std::optional(u.writer) : std::nullopt;
}

/// Puts the matmul in the place of the op after it, whose output it makes from now on.
void take_over(Compiler& c, int matmul, int after) {
  VirtualInstruction fused = std::move(c.code[matmul]);
  VirtualInstruction& last = c.code[after];
  fused.outputs = std::move(last.outputs);
  fused.code.outputs = std::move(last.code.outputs);
  fused.code.name = std::move(last.code.name);
  if (is_kernel(last, "add_bias")) {
    fused.code.attrs.set("bias", true);
    fused.inputs.push_back(last.inputs[1]);
    fused.code.inputs.push_back(std::move(last.code.inputs[1]));
  } else {
    fused.code.attrs.set("activation", std::string("relu"));
  }
  last = std::move(fused);
  c.code[matmul].code.opcode = Opcode::wait;  // removed below
  c.code[matmul].inputs.clear();
  c.code[matmul].outputs.clear();
}

}  // namespace

void fuse_matmul(Compiler& c) {
  std::vector<Uses> uses = count_uses(c);
  for (size_t i = 0; i < c.code.size(); ++i) {
    const VirtualInstruction& v = c.code[i];
    const bool bias = is_kernel(v, "add_bias"), relu = is_kernel(v, "relu");
    if (!bias && !relu) continue;
    const std::optional<int> matmul = matmul_before(c, uses, v);
    if (!matmul || (bias && c.code[*matmul].code.attrs.has("bias"))) continue;
    take_over(c, *matmul, static_cast<int>(i));
    uses[c.code[i].outputs[0]].writer = static_cast<int>(i);
  }
  std::erase_if(c.code, [](const VirtualInstruction& v) { return v.code.opcode == Opcode::wait; });
}

}  // namespace trainctl
