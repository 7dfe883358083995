// Copies the state of a CPU rank in a separate thread while a step runs. An instruction waits only for what it
// is about to overwrite, and then copies that itself: so a thread that gets no core holds up nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/runtime/state_copy.h"

namespace trainctl {

class StateCopier {
 public:
  /// `arena` and `to` must outlive it.
  StateCopier(const Program& program, const std::byte* arena, const std::vector<StateCopy>& copies, std::byte* to);
  ~StateCopier();  ///< ends a copy that is under way
  StateCopier(const StateCopier&) = delete;
  StateCopier& operator=(const StateCopier&) = delete;

  /// Call it between two steps, while no copy is in progress. Allocates nothing.
  void begin();
  /// Called before the instruction runs: copies the pieces that it overwrites, unless the thread has copied them.
  void before(int instruction) {
    if (const size_t needed = needed_[static_cast<size_t>(instruction)]; needed > safe_) copy_up_to(needed);
  }
  bool is_done() const { return finished_.load(std::memory_order_acquire) == pieces_.size(); }
  /// Waits until is_done(), copying what is left.
  void finish();

 private:
  struct Piece {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
    std::atomic<bool> done{false};
    Piece(const std::byte* source, std::byte* target, size_t size) : from(source), to(target), bytes(size) {}
    Piece(Piece&& other) noexcept : from(other.from), to(other.to), bytes(other.bytes) {}
  };

  void work();
  bool copy_next(size_t limit);
  void copy_up_to(size_t count);

  std::vector<Piece> pieces_;   ///< in the order in which they are overwritten
  std::vector<size_t> needed_;  ///< by instruction: how many of them must be copied before it
  std::atomic<size_t> next_{0}, finished_{0};
  size_t safe_ = 0;  ///< pieces that the step's thread has seen copied
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t copies_ = 0;  ///< number of copies that have begun
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace trainctl
