// Joins two instructions, for the passes that merge them. The mark of a removed one is Opcode::wait, which no
// instruction has before order_sends.
#include "engine/compile/fuse/join_instructions.h"

#include <utility>

namespace trainctl {

void mark_removed(Compiler& c, size_t at) {
  c.code[at] = {};
  c.code[at].code.opcode = Opcode::wait;
}

void remove_marked(Compiler& c) {
  std::erase_if(c.code, [](const VirtualInstruction& v) { return v.code.opcode == Opcode::wait; });
}

void join_outputs(Compiler& c, size_t from, size_t into, size_t place) {
  VirtualInstruction both = std::move(c.code[into]);
  const VirtualInstruction& more = c.code[from];
  both.outputs.insert(both.outputs.end(), more.outputs.begin(), more.outputs.end());
  both.code.outputs.insert(both.code.outputs.end(), more.code.outputs.begin(), more.code.outputs.end());
  mark_removed(c, place == into ? from : into);
  c.code[place] = std::move(both);
}

}  // namespace trainctl
