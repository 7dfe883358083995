// If an op or an all_reduce may overwrite an input whose lifetime ends there, its output takes the input's buffer.
#include <algorithm>
#include <numeric>

#include "engine/compile/passes.h"
#include "engine/compile/place/lifetimes.h"

namespace trainctl {
namespace {

/// An input, and an output that may be written to the memory of this input.
struct Place {
  size_t input = 0, output = 0;
};

/// The pairs of an input and an output that may share memory.
std::vector<Place> places(const Instruction& code) {
  std::vector<Place> found;
  if (code.inputs.empty() || code.outputs.empty()) return found;
  if (code.opcode == Opcode::collective && code.collective == Collective::all_reduce) return {{0, 0}};
  if (code.opcode != Opcode::kernel) return found;
  switch (kernel_of(code)->in_place) {
    case InPlace::no:
      break;
    case InPlace::first_on_first:
      found.push_back({0, 0});
      break;
    case InPlace::last_on_first:
      found.push_back({0, code.outputs.size() - 1});
      break;
    case InPlace::only_on_alike:
      for (size_t i = 0; i < code.inputs.size() && code.outputs.size() == 1; ++i)
        if (code.inputs[i].shape == code.outputs[0].shape) found.push_back({i, 0});
      break;
  }
  return found;
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
    for (const Place& place : places(v.code)) {
      const BufferId in = v.inputs[place.input], out = v.outputs[place.output];
      if (in == out || !is_whole(c, in, v.code.inputs[place.input]) || !is_whole(c, out, v.code.outputs[place.output]))
        continue;
      const bool differ = c.buffers[in].bytes != c.buffers[out].bytes;
      const bool read_again = lives[in].last > i || std::count(v.inputs.begin(), v.inputs.end(), in) > 1;
      if (differ || read_again || lives[out].first < i) continue;
      now[out] = in;
      v.outputs[place.output] = in;
      lives[in].last = lives[out].last;
      c.buffers[in].lasts_until = std::max(c.buffers[in].lasts_until, c.buffers[out].lasts_until);
      if (c.buffers[out].kind == BufferKind::activation) c.buffers[in].kind = BufferKind::activation;
      break;
    }
  }
}

}  // namespace trainctl
