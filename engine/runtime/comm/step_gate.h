// Lets all ranks of a host end after the same step, without a collective: every rank asks before it starts a step,
// and a request to stop closes the gate behind the highest step that any rank has started.
//
// word := stop:1 highest_started:63          one atomic, which orders starts and stops
#pragma once

#include <atomic>
#include <cstdint>

namespace trainctl {

/// Placed in shared memory; all zero is open, with no step started.
class StepGate {
 public:
  /// Whether `step` (from 1) may be started. Each rank asks in order. After one refusal, no rank gets that step.
  bool start(uint64_t step) {
    uint64_t seen = word_.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t highest = seen & ~kStop;
      if (step <= highest) return true;
      if ((seen & kStop) != 0) return false;
      if (word_.compare_exchange_weak(seen, step, std::memory_order_relaxed)) return true;
    }
  }

  /// No step after the highest started one may start any more.
  void ask_to_stop() { word_.fetch_or(kStop, std::memory_order_relaxed); }

  bool asked_to_stop() const { return (word_.load(std::memory_order_relaxed) & kStop) != 0; }
  /// The highest step started; 0: none.
  uint64_t highest() const { return word_.load(std::memory_order_relaxed) & ~kStop; }

 private:
  static constexpr uint64_t kStop = uint64_t{1} << 63;
  std::atomic<uint64_t> word_{0};
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
};

}  // namespace trainctl
