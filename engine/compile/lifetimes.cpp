#include "engine/compile/lifetimes.h"

#include <algorithm>

namespace trainctl {

std::vector<Lifetime> lifetimes(const Compiler& c) {
  std::vector<Lifetime> lives(c.buffers.size());
  const auto use = [&](BufferId buffer, int at) {
    Lifetime& life = lives[buffer];
    if (life.first < 0) life.first = at;
    life.last = std::max(life.last, at);
  };
  for (int i = 0; i < static_cast<int>(c.code.size()); ++i) {
    for (BufferId buffer : c.code[i].inputs) use(buffer, i);
    for (BufferId buffer : c.code[i].outputs) use(buffer, i);
    for (int send : c.code[i].code.waits) {
      for (BufferId buffer : c.code[send].inputs) use(buffer, i);
    }
  }
  return lives;
}

}  // namespace trainctl
