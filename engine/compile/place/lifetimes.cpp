// The lifetime of each buffer, in instruction indices.
#include "engine/compile/place/lifetimes.h"

#include <algorithm>

namespace trainctl {

/// From the first to the last instruction that uses each buffer. Kernels of one launch count as one instruction, and
/// the buffer of a send is in use until an instruction waits for the send.
std::vector<Lifetime> lifetimes(const Compiler& c) {
  std::vector<Lifetime> lives(c.buffers.size());
  const auto use = [&](const std::vector<BufferId>& buffers, int from, int to) {
    for (BufferId buffer : buffers) {
      Lifetime& life = lives[buffer];
      if (life.first < 0) life.first = from;
      life.last = std::max(life.last, to);
    }
  };
  const auto size = static_cast<int>(c.code.size());
  for (int first = 0, end = 0; first < size; first = end) {
    const int launch = c.code[first].code.launch;
    for (end = first + 1; launch >= 0 && end < size && c.code[end].code.launch == launch;) ++end;
    for (int i = first; i < end; ++i) {
      use(c.code[i].inputs, first, end - 1);
      use(c.code[i].outputs, first, end - 1);
      for (int awaited : c.code[i].code.waits)
        if (c.code[awaited].code.opcode == Opcode::send) use(c.code[awaited].inputs, i, i);
    }
  }
  for (size_t b = 0; b < lives.size(); ++b)
    if (lives[b].first >= 0) lives[b].last = std::max(lives[b].last, c.buffers[b].lasts_until - 1);
  return lives;
}

}  // namespace trainctl
