#include "engine/compile/conflicts.h"

#include <algorithm>
#include <vector>

#include "engine/compile/accesses.h"

namespace trainctl {
namespace {

template <class Counts>
bool share_bytes(const VirtualInstruction& a, const VirtualInstruction& b, const Counts& counts) {
  const std::vector<Access> of_a = accesses(a.code), of_b = accesses(b.code);
  const auto buffer = [](const VirtualInstruction& v, size_t i) {
    return i < v.inputs.size() ? v.inputs[i] : v.outputs[i - v.inputs.size()];
  };
  for (size_t i = 0; i < of_a.size(); ++i) {
    for (size_t j = 0; j < of_b.size(); ++j) {
      if (buffer(a, i) == buffer(b, j) && counts(of_a[i], of_b[j]) && of_a[i].begin() < of_b[j].end() &&
          of_b[j].begin() < of_a[i].end())
        return true;
    }
  }
  return false;
}

}  // namespace

bool touch_the_same(const VirtualInstruction& a, const VirtualInstruction& b) {
  return share_bytes(a, b, [](const Access&, const Access&) { return true; });
}

bool conflict(const VirtualInstruction& a, const VirtualInstruction& b) {
  return share_bytes(a, b, [](const Access& of_a, const Access& of_b) { return of_a.writes || of_b.writes; });
}

bool can_move(const Compiler& c, const VirtualInstruction& v, size_t from, size_t to) {
  for (size_t i = std::min(from, to) + 1; i < std::max(from, to); ++i)
    if (conflict(v, c.code[i])) return false;
  return true;
}

}  // namespace trainctl
