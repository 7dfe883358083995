// Assigns batches to asynchronous workers without a collective, and holds counters of servers and workers. Placed in
// shared memory: zeroed memory after prepare() is the initial state.
//
//   batches    0 1 2 3 | 4 5 6 7 | 8 …       for 4 workers: a round is one batch for each
//   share w    w, w + 4, w + 8, …            for worker w; with `rebalance`, or if worker w has died, for any worker
//
// A claim takes the lowest batch that is open to the worker. Batches that a worker had claimed and not finished when it
// died are claimed again. If a worker dies inside claim(), a batch may run twice: servers apply each batch once.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace trainctl {

class BatchBoard {
 public:
  static constexpr int kMostWorkers = 256;
  static constexpr int kMostClaims = 32;  ///< most unfinished claims of one worker
  static constexpr int kMostStaleness = 63;
  // Values that claim() returns if it has no batch to return.
  /// All batches are claimed but not all are finished: one may become open again.
  static constexpr int64_t kNoneNow = -1;
  static constexpr int64_t kEnd = -2;  ///< all batches are finished

  /// Sets the batches to [first, end). Called once, before any worker starts.
  void prepare(int workers, int64_t first, int64_t end, bool rebalance) {
    workers_ = workers;
    first_ = first;
    end_ = end;
    rebalance_ = rebalance;
  }
  int workers() const { return workers_; }
  int64_t first() const { return first_; }
  int64_t end() const { return end_; }
  /// The round of a batch. Batches of one round may run concurrently, whatever the limit of staleness.
  int64_t round(int64_t batch) const { return (batch - first_) / workers_; }

  int64_t claim(int worker) {
    for (;;) {
      if (const int64_t batch = take_back(worker); batch >= 0) return batch;
      int share = -1;
      int64_t lowest = end_, seen = 0;
      for (int s = 0; s < workers_; ++s) {
        if (s != worker && !rebalance_ && !of(s).gone.load(std::memory_order_acquire)) continue;
        const int64_t taken = of(s).taken.load(std::memory_order_acquire), batch = first_ + s + taken * workers_;
        if (batch >= lowest) continue;
        lowest = batch;
        seen = taken;
        share = s;
      }
      if (share < 0) return finished_.load(std::memory_order_acquire) >= end_ - first_ ? kEnd : kNoneNow;
      std::atomic<int64_t>& slot = free_slot(worker);
      slot.store(lowest + 1, std::memory_order_release);
      if (of(share).taken.compare_exchange_strong(seen, seen + 1, std::memory_order_acq_rel)) return lowest;
      slot.store(0, std::memory_order_release);
    }
  }

  void finished(int worker, int64_t batch, double seconds) {
    for (std::atomic<int64_t>& slot : of(worker).claims) {
      int64_t claimed = batch + 1;
      if (!slot.compare_exchange_strong(claimed, 0, std::memory_order_acq_rel)) continue;
      finished_.fetch_add(1, std::memory_order_acq_rel);
      of(worker).finished.fetch_add(1, std::memory_order_relaxed);
      of(worker).busy_ns.fetch_add(static_cast<uint64_t>(seconds * 1e9), std::memory_order_relaxed);
      return;
    }
  }
  /// States that the worker has ended, so that other workers take its unfinished batches.
  void set_gone(int worker) { of(worker).gone.store(true, std::memory_order_release); }

  // A new process in the place of a worker that has died:
  //
  //   launcher   announce(w)                                  the old process is gone
  //   server     sees lives(w) change, drops the remaining messages of the old process, dropped(w)
  //   worker     waits until every server has, then join(w)
  void announce(int worker) {
    of(worker).dropped.store(0, std::memory_order_relaxed);
    of(worker).lives.fetch_add(1, std::memory_order_acq_rel);
  }
  int lives(int worker) const {
    return workers_list_[static_cast<size_t>(worker)].lives.load(std::memory_order_acquire);
  }
  void dropped(int worker) { of(worker).dropped.fetch_add(1, std::memory_order_acq_rel); }
  int dropped_by(int worker) const {
    return workers_list_[static_cast<size_t>(worker)].dropped.load(std::memory_order_acquire);
  }
  /// Calls take(batch) for each batch that the old process had claimed and that has not been taken back. These batches
  /// are claimed.
  template <class F>
  void join(int worker, const F& take) {
    of(worker).gone.store(false, std::memory_order_seq_cst);
    for (std::atomic<int64_t>& slot : of(worker).claims)
      if (const int64_t claimed = slot.load(std::memory_order_acquire); claimed != 0) take(claimed - 1);
  }
  bool is_gone(int worker) const {
    return workers_list_[static_cast<size_t>(worker)].gone.load(std::memory_order_acquire);
  }

  int64_t finished() const { return finished_.load(std::memory_order_acquire); }
  int64_t finished_by(int worker) const {
    return workers_list_[static_cast<size_t>(worker)].finished.load(std::memory_order_relaxed);
  }
  double busy_seconds(int worker) const {
    return static_cast<double>(workers_list_[static_cast<size_t>(worker)].busy_ns.load(std::memory_order_relaxed)) *
           1e-9;
  }

  /// Called by a server that has applied gradients computed with weights that were `staleness` updates old.
  void count_staleness(int64_t staleness) {
    staleness_[static_cast<size_t>(std::min<int64_t>(staleness, kMostStaleness))].fetch_add(1,
                                                                                            std::memory_order_relaxed);
  }
  int64_t updates_of_staleness(int staleness) const {
    return staleness_[static_cast<size_t>(staleness)].load(std::memory_order_relaxed);
  }

 private:
  struct alignas(64) Worker {
    std::atomic<int64_t> taken{0};  ///< batches taken of its share
    std::atomic<bool> gone{false};
    std::atomic<int> lives{0}, dropped{0};
    std::atomic<int64_t> finished{0};
    std::atomic<uint64_t> busy_ns{0};
    std::array<std::atomic<int64_t>, kMostClaims> claims{};  ///< batch + 1; 0: none
  };

  Worker& of(int worker) { return workers_list_[static_cast<size_t>(worker)]; }

  std::atomic<int64_t>& free_slot(int worker) {
    for (std::atomic<int64_t>& slot : of(worker).claims)
      if (slot.load(std::memory_order_relaxed) == 0) return slot;
    return of(worker).claims[0];  // never reached: a loader claims fewer batches at a time
  }

  int64_t take_back(int worker) {
    for (int w = 0; w < workers_; ++w) {
      if (w == worker || !is_gone(w)) continue;
      for (std::atomic<int64_t>& slot : of(w).claims) {
        int64_t claimed = slot.load(std::memory_order_acquire);
        if (claimed == 0) continue;
        std::atomic<int64_t>& mine = free_slot(worker);
        mine.store(claimed, std::memory_order_release);
        if (slot.compare_exchange_strong(claimed, 0, std::memory_order_acq_rel)) return claimed - 1;
        mine.store(0, std::memory_order_release);
      }
    }
    return -1;
  }

  int workers_ = 0;
  bool rebalance_ = false;
  int64_t first_ = 0, end_ = 0;
  std::atomic<int64_t> finished_{0};
  std::array<std::atomic<int64_t>, kMostStaleness + 1> staleness_{};
  std::array<Worker, kMostWorkers> workers_list_{};
};

}  // namespace trainctl
