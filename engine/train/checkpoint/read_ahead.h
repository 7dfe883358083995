// Reads the parts of a state with several threads, while one thread writes them in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <future>
#include <utility>

#include "engine/runtime/comm/event.h"

namespace trainctl {

/// Calls use(part, read(part)) for each part in [0, parts), in order, on this thread. `read` runs ahead on as many
/// threads as this process has cores, but at most 16: converting and rounding take longer than the writes. Rethrows
/// the error of the first part that has one.
template <class Read, class Use>
void read_ahead(size_t parts, const Read& read, const Use& use) {
  const auto readers = static_cast<size_t>(std::clamp(comm::usable_cores(), 1, 16));
  std::deque<std::future<decltype(read(size_t{}))>> ahead;
  for (size_t next = 0, used = 0; used < parts; ++used) {
    for (; next < parts && ahead.size() < readers; ++next)
      ahead.push_back(std::async(std::launch::async, [&read, next] { return read(next); }));
    auto result = ahead.front().get();
    ahead.pop_front();
    use(used, std::move(result));
  }
}

}  // namespace trainctl
