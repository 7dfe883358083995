// See the header.
#include "engine/estimate/cache_use.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace trainctl {
namespace {

/// When each byte of an arena was last touched, on a clock that counts touched bytes.
class Touches {
 public:
  /// Bytes of the range that were touched since `time`.
  int64_t since(int64_t begin, int64_t end, int64_t time) const {
    int64_t bytes = 0;
    for (auto at = pieces_.upper_bound(begin); at != pieces_.end() && at->second.begin < end; ++at)
      if (at->second.touched >= time) bytes += std::min(end, at->first) - std::max(begin, at->second.begin);
    return bytes;
  }

  void touch(int64_t begin, int64_t end, int64_t now) {
    if (begin == end) return;
    auto at = pieces_.upper_bound(begin);
    if (at != pieces_.end() && at->second.begin < begin) {  // keep what lies before the range
      pieces_.emplace(begin, at->second);
      at->second.begin = begin;
    }
    while (at != pieces_.end() && at->first <= end) at = pieces_.erase(at);
    if (at != pieces_.end() && at->second.begin < end) at->second.begin = end;
    pieces_.insert_or_assign(end, Piece{begin, now});
  }

 private:
  struct Piece {
    int64_t begin = 0, touched = 0;
  };
  std::map<int64_t, Piece> pieces_;  ///< disjoint, by their end
};

template <class F>
void for_each_operand(const Instruction& instruction, const F& f) {
  for (const auto* operands : {&instruction.inputs, &instruction.outputs})
    for (const Operand& operand : *operands) f(operand.offset, operand.offset + operand.bytes());
}

}  // namespace

std::vector<double> parts_in_cache(const Program& program, Bytes cache) {
  std::vector<double> parts(program.instructions.size(), 0.0);
  if (cache == Bytes{}) return parts;
  constexpr int kSteps = 2;  // the first fills the cache
  Touches touches;
  int64_t now = 0;
  for (int step = 0; step < kSteps; ++step)
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t oldest = now - static_cast<int64_t>(cache.value);
      int64_t all = 0, held = 0;
      for_each_operand(program.instructions[i], [&](int64_t begin, int64_t end) {
        all += end - begin;
        held += touches.since(begin, end, oldest);
      });
      now += all;
      for_each_operand(program.instructions[i], [&](int64_t begin, int64_t end) { touches.touch(begin, end, now); });
      parts[i] = all == 0 ? 0 : static_cast<double>(held) / static_cast<double>(all);
    }
  return parts;
}

}  // namespace trainctl
