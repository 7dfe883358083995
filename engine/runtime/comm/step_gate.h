// Lets all ranks of a job end after the same step, without a collective: every rank asks before it starts a step, and a
// request to stop closes the gate after the highest step that any rank has started.
//
// word := stop:1 held:1 highest_started:62          one atomic, which orders starts and stops
//
// Each host has a gate. On several hosts a stop has two steps: every gate is held, so that no rank starts another step;
// then each is closed after the highest step that a rank of any host had started. A save between two steps holds them
// too, and releases them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace trainctl {

/// Placed in shared memory; all zero is open, with no step started.
class StepGate {
 public:
  /// True if `step` (from 1) may be started. Each rank asks in order. After one refusal, no rank gets that step. Waits
  /// while the gate is held.
  bool start(uint64_t step) {
    uint64_t seen = word_.load(std::memory_order_relaxed);
    for (;;) {
      if (step <= (seen & kSteps)) return true;
      if ((seen & kStop) != 0) return false;
      if ((seen & kHeld) != 0) {
        std::this_thread::sleep_for(kLook);
        seen = word_.load(std::memory_order_relaxed);
      } else if (word_.compare_exchange_weak(seen, step, std::memory_order_relaxed)) {
        return true;
      }
    }
  }

  /// Closes the gate: no step after the highest started one may start any more.
  void ask_to_stop() { word_.fetch_or(kStop, std::memory_order_relaxed); }

  /// The first half of a stop on several hosts. Returns the highest started step; no later step starts until
  /// stop_after() or release().
  uint64_t hold() { return word_.fetch_or(kHeld, std::memory_order_relaxed) & kSteps; }
  /// The second half: no step after both `step` and the highest step started here may start any more.
  void stop_after(uint64_t step) {
    uint64_t seen = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(seen, std::max(seen & kSteps, step) | kStop, std::memory_order_relaxed)) {
    }
  }

  /// Ends hold(): steps may start again.
  void release() { word_.fetch_and(~kHeld, std::memory_order_relaxed); }

  bool asked_to_stop() const { return (word_.load(std::memory_order_relaxed) & kStop) != 0; }
  /// The highest step started; 0: none.
  uint64_t highest() const { return word_.load(std::memory_order_relaxed) & kSteps; }

 private:
  static constexpr uint64_t kStop = uint64_t{1} << 63;
  static constexpr uint64_t kHeld = uint64_t{1} << 62;
  static constexpr uint64_t kSteps = kHeld - 1;
  static constexpr std::chrono::microseconds kLook{200};
  std::atomic<uint64_t> word_{0};
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
};

}  // namespace trainctl
