// What follows a matmul becomes part of it, where nobody else reads what lies between:
//   matmul -> add_bias (-> relu or gelu)      gelu's input is kept beside where its backward reads it
//   matmul -> relu_grad or gelu_grad          the gradient of a layer's input, through the activation before it
// relu's backward takes its output, so only the last of them has to be kept.
#include <algorithm>
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

bool names(const std::vector<BufferId>& buffers, BufferId buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

/// Whether a matmul may run as late as `later`: nobody wants its output before, and its inputs stay.
bool can_wait(const Compiler& c, int matmul, int later) {
  const VirtualInstruction& m = c.code[matmul];
  for (int i = matmul + 1; i < later; ++i) {
    if (names(c.code[i].inputs, m.outputs[0])) return false;
    for (BufferId written : c.code[i].outputs)
      if (names(m.inputs, written)) return false;
  }
  return true;
}

/// Whether the op after a matmul may run as early as it: what else it reads is there, and its output's place is free.
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

/// What a matmul becomes with the op after it; nothing where it has no such form.
enum class Fusion { bias, activation, kept_activation, slope };

std::optional<Fusion> fusion_of(const VirtualInstruction& matmul, const VirtualInstruction& after, bool read_again) {
  const Attrs& attrs = matmul.code.attrs;
  if (attrs.has("activation") || attrs.has("activation_grad")) return std::nullopt;
  if (is_kernel(after, "add_bias") && !read_again && !attrs.has("bias")) return Fusion::bias;
  if (is_kernel(after, "relu") && !read_again) return Fusion::activation;
  if (is_kernel(after, "gelu")) return read_again ? Fusion::kept_activation : Fusion::activation;
  const bool is_slope = is_kernel(after, "relu_grad") || is_kernel(after, "gelu_grad");
  if (is_slope && !read_again && !attrs.has("bias")) return Fusion::slope;
  return std::nullopt;
}

struct Found {
  int matmul = -1;
  Fusion fusion{};
  int place = -1;  ///< of the fused instruction: the matmul's or that of the op after it
};

/// The matmul that makes input 0 of instruction `at`, and what they become together.
std::optional<Found> matmul_before(const Compiler& c, const std::vector<Uses>& uses, int at) {
  const VirtualInstruction& v = c.code[at];
  if (v.code.opcode != Opcode::kernel || v.inputs.empty()) return std::nullopt;
  const BufferId between = v.inputs[0];
  const Uses& u = uses[between];
  if (is_persistent(c.buffers[between].kind) || u.writes != 1 || u.writer >= at) return std::nullopt;
  const VirtualInstruction& matmul = c.code[u.writer];
  const bool fits = is_kernel(matmul, "matmul") && matmul.code.outputs.size() == 1 &&
                    !matmul.code.outputs[0].accumulate && matmul.code.outputs[0].shape == v.code.inputs[0].shape &&
                    matmul.code.outputs[0].dtype == v.code.outputs[0].dtype;
  const std::optional<Fusion> fusion = fits ? fusion_of(matmul, v, u.reads > 1) : std::nullopt;
  if (!fusion) return std::nullopt;
  // Early where it can be: a step of descent on the weights that the matmul reads may come right after it.
  if (can_come_first(c, u.writer, at)) return Found{u.writer, *fusion, u.writer};
  if (can_wait(c, u.writer, at)) return Found{u.writer, *fusion, at};
  return std::nullopt;
}

/// Makes one of the two, at `place`; the other is marked.
void join(Compiler& c, const Found& found, int after) {
  VirtualInstruction fused = std::move(c.code[found.matmul]);
  VirtualInstruction last = std::move(c.code[after]);
  Attrs& attrs = fused.code.attrs;
  if (found.fusion == Fusion::kept_activation) {
    attrs.set("keep_input", true);
    last.outputs.push_back(fused.outputs[0]);
    last.code.outputs.push_back(std::move(fused.code.outputs[0]));
  }
  fused.outputs = std::move(last.outputs);
  fused.code.outputs = std::move(last.code.outputs);
  fused.code.name = std::move(last.code.name);
  if (found.fusion == Fusion::bias || found.fusion == Fusion::slope) {
    fused.inputs.push_back(last.inputs[1]);
    fused.code.inputs.push_back(std::move(last.code.inputs[1]));
  }
  const std::string op = last.code.op.substr(0, last.code.op.find('_'));  // relu, gelu
  if (found.fusion == Fusion::bias) {
    attrs.set("bias", true);
  } else {
    attrs.set(found.fusion == Fusion::slope ? "activation_grad" : "activation", op);
  }
  if (last.code.attrs.has("approximate")) attrs.set("approximate", last.code.attrs.text("approximate"));
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
