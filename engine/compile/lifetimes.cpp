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
  const auto size = static_cast<int>(c.code.size());
  const auto same_launch = [&](int a, int b) {
    return c.code[a].code.launch >= 0 && c.code[a].code.launch == c.code[b].code.launch;
  };
  for (int i = 0, first = 0, last = 0; i < size; ++i) {
    if (i == 0 || !same_launch(i - 1, i)) first = i;
    for (last = std::max(last, i); last + 1 < size && same_launch(i, last + 1);) ++last;
    for (const std::vector<BufferId>* buffers : {&c.code[i].inputs, &c.code[i].outputs}) {
      for (BufferId buffer : *buffers) {
        use(buffer, first);
        use(buffer, last);
      }
    }
    for (int send : c.code[i].code.waits) {
      for (BufferId buffer : c.code[send].inputs) use(buffer, i);
    }
  }
  return lives;
}

}  // namespace trainctl
