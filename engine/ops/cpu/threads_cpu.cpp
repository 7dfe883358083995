// Workers that sleep between kernels: each run increments `round_`, and the last worker to finish wakes the caller.
// Both sides look for a change a short time before they sleep, because waking a thread takes as long as a small kernel.
#include "engine/ops/cpu/threads_cpu.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace trainctl::cpu {
namespace {

constexpr auto kLooksFor = std::chrono::microseconds(20);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Returns when `value` is no longer `old`.
template <class T>
void wait_for_change(const std::atomic<T>& value, T old) {
  constexpr int kLooksPerClock = 64;
  for (const auto end = std::chrono::steady_clock::now() + kLooksFor; std::chrono::steady_clock::now() < end;) {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
  }
  value.wait(old);
}

class Workers {
 public:
  ~Workers() {
    stop_ = true;
    ++round_;
    round_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void grow(int workers) {
    while (static_cast<int>(threads_.size()) < workers) {
      const int part = static_cast<int>(threads_.size()) + 1;
      threads_.emplace_back([this, part, seen = round_.load()] { work(part, seen); });
    }
  }

  void run(int parts, void (*body)(const void*, int), const void* context) {
    grow(parts - 1);
    body_ = body;
    context_ = context;
    parts_ = parts;
    pending_ = static_cast<int>(threads_.size());
    ++round_;
    round_.notify_all();
    body(context, 0);
    for (int left = pending_.load(); left != 0; left = pending_.load()) wait_for_change(pending_, left);
  }

 private:
  void work(int part, uint32_t seen) {
    for (;;) {
      wait_for_change(round_, seen);
      seen = round_.load();
      if (stop_) return;
      if (part < parts_) body_(context_, part);
      if (pending_.fetch_sub(1) == 1) pending_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::atomic<uint32_t> round_ = 0;
  std::atomic<int> pending_ = 0;
  std::atomic<bool> stop_ = false;
  void (*body_)(const void*, int) = nullptr;  // these three are written before round_
  const void* context_ = nullptr;
  int parts_ = 0;
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
