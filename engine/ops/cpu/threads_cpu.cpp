// Workers that sleep between kernels: each run increments the `round` of its workers, and the last worker to finish
// wakes the caller.
// Both sides look for a change before they sleep, because waking a thread takes as long as a small kernel, and on an
// idle virtual processor as long as a large one.
#include "engine/ops/cpu/threads_cpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "engine/base/processors.h"

namespace trainctl::cpu {
namespace {

using Time = std::chrono::microseconds;
constexpr Time kLeastLook{20};
/// The longest time for which a thread looks before it sleeps. It is longer than kernels that run on one thread take,
/// and longer than threads with equal parts differ.
constexpr Time kMostLook{500};

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Waits for a value to change by looking at it before sleeping. The time for which it looks becomes shorter each time
/// the thread looked in vain, for example because other programs use the processors.
class Look {
 public:
  /// Returns when `value` is no longer `old`.
  template <class T>
  void wait_for_change(const std::atomic<T>& value, T old, Time most) {
    constexpr int kLooksPerClock = 64;
    length_ = std::min(length_, most);
    for (const auto end = Clock::now() + length_; Clock::now() < end;) {
      for (int i = 0; i < kLooksPerClock; ++i) {
        if (value.load(std::memory_order_acquire) != old) {
          length_ = std::min(2 * length_, most);
          return;
        }
        pause();
      }
    }
    length_ = std::max(length_ / 4, kLeastLook);
    value.wait(old);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Time length_ = kMostLook;
};

class Workers {
 public:
  ~Workers() {
    stop_ = true;
    for (const auto& worker : workers_) worker->begin_round();
    for (const auto& worker : workers_) worker->thread.join();
  }

  void grow(int workers) {
    if (static_cast<int>(workers_.size()) >= workers) return;
    most_look_ = allowed_processors() > workers ? kMostLook : kLeastLook;
    workers_.reserve(static_cast<size_t>(workers));
    while (static_cast<int>(workers_.size()) < workers) {
      const int part = static_cast<int>(workers_.size()) + 1;
      auto worker = std::make_unique<Worker>();
      worker->thread = std::thread([this, part, &mine = *worker] { work(part, mine.round); });
      // Added only now: a worker whose thread could not start is not in the list.
      workers_.push_back(std::move(worker));
    }
  }

  /// Only the workers that have a part are woken.
  void run(int parts, void (*body)(const void*, int), const void* context) {
    grow(parts - 1);
    body_ = body;
    context_ = context;
    pending_ = parts - 1;
    for (int i = 0; i < parts - 1; ++i) workers_[static_cast<size_t>(i)]->begin_round();
    body(context, 0);
    for (int left = pending_.load(); left != 0; left = pending_.load())
      look_.wait_for_change(pending_, left, most_look_);
  }

 private:
  struct Worker {
    alignas(64) std::atomic<uint32_t> round = 0;
    std::thread thread;

    void begin_round() {
      ++round;
      round.notify_one();
    }
  };

  void work(int part, const std::atomic<uint32_t>& round) {
    Look look;
    for (uint32_t seen = 0;; ++seen) {
      look.wait_for_change(round, seen, most_look_);
      if (stop_) return;
      body_(context_, part);
      if (pending_.fetch_sub(1) == 1) pending_.notify_one();
    }
  }

  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<Time> most_look_{kLeastLook};
  Look look_;  // of the calling thread
  std::atomic<int> pending_ = 0;
  std::atomic<bool> stop_ = false;
  void (*body_)(const void*, int) = nullptr;  // these two are written before a round begins
  const void* context_ = nullptr;
};

Workers& workers() {
  static thread_local Workers mine;
  return mine;
}

}  // namespace

void run_parts(int parts, void (*body)(const void* context, int part), const void* context) {
  if (parts <= 1) {
    body(context, 0);
  } else {
    workers().run(parts, body, context);
  }
}

void start_workers(int parts) {
  if (parts > 1) workers().grow(parts - 1);
}

}  // namespace trainctl::cpu
