// Maps each byte of the arena to a value. Stored as ranges of bytes whose values have changed together.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace trainctl {

template <class T>
class ArenaMap {
 public:
  /// Calls f(T&) for each range within [begin, end); bytes that were never changed have T{}. Ranges are split at the
  /// two ends, so f may change them.
  template <class F>
  void for_each(int64_t begin, int64_t end, F f) {
    if (begin >= end) return;
    split(begin);
    split(end);
    for (auto it = stretches_.find(begin); it->first < end; ++it) f(it->second);
  }

 private:
  void split(int64_t at) {
    const auto next = stretches_.upper_bound(at);
    const auto here = std::prev(next);
    if (here->first != at) stretches_.emplace_hint(next, at, here->second);
  }

  std::map<int64_t, T> stretches_ = {{INT64_MIN, T{}}};  // first byte -> value, up to the next key
};

}  // namespace trainctl
