// A copy of a rank's state in host memory, to which a run returns after a spike (train.on_spike: then: rollback).
#include "engine/train/trainer/state_snapshot.h"

#include "engine/runtime/stored_ranges.h"

namespace trainctl {

StateSnapshot::StateSnapshot(const Program& program) {
  int64_t bytes = 0;
  for (const StoredRange& range : stored_ranges(program)) {
    if (range.count == 0) continue;
    ranges_.push_back({range.offset, range.bytes()});
    bytes += range.bytes();
  }
  copy_.resize(static_cast<size_t>(bytes));
}

void StateSnapshot::take(int64_t step, Executor& executor) {
  step_ = step;
  std::byte* to = copy_.data();
  for (const Range& range : ranges_) {
    executor.read(range.offset, to, range.bytes);
    to += range.bytes;
  }
}

void StateSnapshot::put_back(Executor& executor) const {
  const std::byte* from = copy_.data();
  for (const Range& range : ranges_) {
    executor.write(range.offset, from, range.bytes);
    from += range.bytes;
  }
}

}  // namespace trainctl
