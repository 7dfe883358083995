// PTX has one register per value. Registers that are never live at the same time share a place, so that the register
// files of a block fit into the processor's cache.
#include "tools/cuda_emulator/place_registers.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>

namespace trainctl::emulator {
namespace {

struct Life {
  int first = -1, last = -1;
  int writes = 0;
  bool surely_written = false;  ///< its first use is an unconditional write
  bool carried() const { return writes != 1 || !surely_written; }
};

template <class Work>
void each_operand(Instruction& in, Work work) {
  for (int32_t& at : in.from) work(at, false);
  work(in.predicate, false);
  for (int32_t& at : in.to) work(at, true);
}

using Lives = std::map<int32_t, Life>;  // by register

Lives lives_of(std::vector<Instruction>& code, const std::map<int32_t, uint8_t>& widths) {
  Lives lives;
  for (size_t i = 0; i < code.size(); ++i) {
    each_operand(code[i], [&](int32_t at, bool writes) {
      if (widths.count(at) == 0) return;
      Life& life = lives[at];
      const auto here = static_cast<int>(i);
      if (life.first < 0) life.first = here, life.surely_written = writes && code[i].predicate < 0;
      life.last = here;
      life.writes += writes;
    });
  }
  return lives;
}

/// Extends the lives of registers over loops: a register that is live at the end of a loop is live in all of it.
void extend_over_loops(const std::vector<Instruction>& code, Lives& lives) {
  std::vector<std::pair<int, int>> loops;
  for (size_t i = 0; i < code.size(); ++i) {
    if (code[i].flow == Flow::branch && code[i].target <= static_cast<int>(i))
      loops.emplace_back(code[i].target, static_cast<int>(i));
  }
  for (auto& [at, life] : lives) {
    for (bool grew = true; grew;) {
      grew = false;
      for (const auto& [begin, end] : loops) {
        if (life.last < begin || life.first > end) continue;
        const bool alive_at_end = life.carried() || life.last > end;
        const int first = alive_at_end ? std::min(life.first, begin) : life.first;
        const int last = life.carried() || first < begin ? std::max(life.last, end) : life.last;
        grew |= first != life.first || last != life.last;
        life.first = first;
        life.last = last;
      }
    }
  }
}

}  // namespace

int32_t place_registers(std::vector<Instruction>& code, const std::map<int32_t, uint8_t>& widths, int32_t fixed) {
  Lives lives = lives_of(code, widths);
  extend_over_loops(code, lives);
  std::vector<std::pair<int32_t, Life>> in_order(lives.begin(), lives.end());
  std::stable_sort(in_order.begin(), in_order.end(),
                   [](const auto& a, const auto& b) { return a.second.first < b.second.first; });
  std::map<uint8_t, std::vector<int32_t>> unused;  // places, by width
  std::map<int32_t, int32_t> place;
  using Ending = std::pair<int, int32_t>;  // (position, register)
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> endings;
  int32_t end = fixed;
  for (const auto& [at, life] : in_order) {
    while (!endings.empty() && endings.top().first < life.first) {
      const int32_t over = endings.top().second;
      unused[widths.at(over)].push_back(place[over]);
      endings.pop();
    }
    const uint8_t width = widths.at(at);
    std::vector<int32_t>& free = unused[width];
    if (free.empty()) {
      if (width != 0) end = (end + 63) / 64 * 64;
      place[at] = end;
      end += width == 0 ? 4 : width * kLanes;
    } else {
      place[at] = free.back();
      free.pop_back();
    }
    endings.emplace(life.last, at);
  }
  for (Instruction& in : code) {
    each_operand(in, [&](int32_t& at, bool) {
      if (const auto found = place.find(at); found != place.end()) at = found->second;
    });
  }
  return end;
}

}  // namespace trainctl::emulator
