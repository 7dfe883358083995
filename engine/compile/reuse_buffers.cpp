// Where input 0 of an in-place op or of an all_reduce dies there, its output takes the buffer.
#include <numeric>
#include <optional>

#include "engine/compile/lifetimes.h"
#include "engine/compile/passes.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

/// The output that may lie on input 0.
std::optional<size_t> output_in_place(const Instruction& code) {
  if (code.inputs.empty() || code.outputs.empty()) return std::nullopt;
  if (code.opcode == Opcode::collective)
    return code.collective == Collective::all_reduce ? std::optional<size_t>(0) : std::nullopt;
  if (code.opcode != Opcode::kernel) return std::nullopt;
  if (code.op.ends_with("_with_grad")) return 1;
  const OpDef* op = find_op(code.op);
  return op != nullptr && op->in_place ? std::optional<size_t>(0) : std::nullopt;
}

bool is_whole(const Compiler& c, BufferId buffer, const Operand& operand) {
  return !is_persistent(c.buffers[buffer].kind) && operand.offset == 0 && operand.bytes() == c.buffers[buffer].bytes;
}

}  // namespace

void reuse_buffers(Compiler& c) {
  std::vector<Lifetime> lives = lifetimes(c);
  std::vector<BufferId> now(c.buffers.size());
  std::iota(now.begin(), now.end(), 0);
  for (int i = 0; i < static_cast<int>(c.code.size()); ++i) {
    VirtualInstruction& v = c.code[i];
    for (BufferId& buffer : v.inputs) buffer = now[buffer];
    for (BufferId& buffer : v.outputs) buffer = now[buffer];
    const std::optional<size_t> place = output_in_place(v.code);
    if (!place) continue;
    const BufferId in = v.inputs[0], out = v.outputs[*place];
    if (in == out || !is_whole(c, in, v.code.inputs[0]) || !is_whole(c, out, v.code.outputs[*place])) continue;
    bool read_again = lives[in].last > i || c.buffers[in].bytes != c.buffers[out].bytes;
    for (size_t other = 1; other < v.inputs.size(); ++other) read_again |= v.inputs[other] == in;
    if (read_again || lives[out].first < i) continue;
    now[out] = in;
    v.outputs[*place] = in;
    lives[in].last = lives[out].last;
    if (c.buffers[out].kind == BufferKind::activation) c.buffers[in].kind = BufferKind::activation;
  }
}

}  // namespace trainctl
