// Waiting for a number in shared memory to change: spins if a core is free for that, else sleeps in the
// kernel (futex). Works between processes and between threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace trainctl::comm {

/// Placed in shared memory; all zero is a valid initial state.
class Event {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }

  /// A rank that sees `value` also sees everything written before. Wakes up to `max_woken` sleepers; the
  /// others sleep on, so a later publish must wake them.
  void publish(uint32_t value, int max_woken = INT32_MAX) {
    value_.store(value, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake(max_woken);
  }

  /// Changes the value; any number of ranks may do so.
  void ring() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake(INT32_MAX);
  }

  /// Sleeps while the value is `seen`, at most about `limit`.
  void sleep(uint32_t seen, std::chrono::nanoseconds limit);

 private:
  void wake(int count);

  std::atomic<uint32_t> value_{0};
  // If a sleeping process is killed, this stays too high, which only costs system calls.
  std::atomic<uint32_t> sleepers_{0};
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
};

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// The wait of one rank.
class Waiter {
 public:
  /// Spins only if every rank of the host can have its own core.
  Waiter(int ranks_of_host, int cores) : spins_(ranks_of_host <= cores ? kMaxSpins : 0) {}

  bool spins() const { return spins_ > 0; }

  /// Returns when ready() is true. Whatever changes ready() must publish `event` afterwards.
  /// on_idle(seconds waited) is called now and then; it throws to give up. Time in which this process itself was
  /// stopped, perhaps with all others (docker pause, scontrol suspend), does not count.
  template <typename Ready, typename OnIdle>
  void wait(Event& event, const Ready& ready, const OnIdle& on_idle) {
    for (int i = 0; i <= spins_; ++i) {
      if (ready()) {
        if (i > spins_ / 2) spins_ = spins_ * 2 < kMaxSpins ? spins_ * 2 : kMaxSpins;
        return;
      }
      pause();
    }
    // Unsuccessful spinning takes a core from the peers: spin less next time.
    if (spins_ > kMinSpins) spins_ /= 2;
    sleep_until(event, ready, on_idle);
  }

 private:
  static constexpr int kMaxSpins = 4096;
  static constexpr int kMinSpins = 64;
  static constexpr std::chrono::milliseconds kNap{50};
  static constexpr double kMostSecondsANap = 1;

  template <typename Ready, typename OnIdle>
  static void sleep_until(Event& event, const Ready& ready, const OnIdle& on_idle) {
    double waited = 0;
    auto last = std::chrono::steady_clock::now();
    while (true) {
      const uint32_t seen = event.load();
      if (ready()) return;
      event.sleep(seen, kNap);
      if (ready()) return;
      const auto now = std::chrono::steady_clock::now();
      waited += std::min(std::chrono::duration<double>(now - last).count(), kMostSecondsANap);
      last = now;
      on_idle(waited);
    }
  }

  int spins_;
};

/// Returns the number of cores that this process may run on, or that all ranks of the host may run on together if the
/// launcher bound the ranks (TRAINCTL_HOST_CORES).
int usable_cores();

}  // namespace trainctl::comm
