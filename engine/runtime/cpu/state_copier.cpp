// Copies the state of a CPU rank in a separate thread while a step runs.
#include "engine/runtime/cpu/state_copier.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/base/error.h"

namespace trainctl {
namespace {

/// The size of a piece. It is small, so that an instruction waits only briefly for a piece that the thread is copying.
constexpr int64_t kPieceBytes = 256 << 10;

}  // namespace

StateCopier::StateCopier(const Program& program, const std::byte* arena, const std::vector<StateCopy>& copies,
                         std::byte* to) {
  const std::vector<int> writers = first_writers(program, copies);
  std::vector<size_t> order(copies.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return writers[a] < writers[b]; });
  needed_.assign(program.instructions.size(), 0);
  for (const size_t copy : order) {
    const StateCopy& c = copies[copy];
    for (int64_t at = 0; at < c.bytes; at += kPieceBytes) {
      pieces_.emplace_back(arena + c.offset + at, to + c.to + at,
                           static_cast<size_t>(std::min(kPieceBytes, c.bytes - at)));
    }
    const auto writer = static_cast<size_t>(writers[copy]);
    if (writer < needed_.size()) needed_[writer] = pieces_.size();
  }
  next_ = finished_ = safe_ = pieces_.size();
  thread_ = std::thread([this] { work(); });
}

StateCopier::~StateCopier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StateCopier::begin() {
  check(is_done(), "a copy of the state begins after the one before it");
  for (Piece& piece : pieces_) piece.done.store(false, std::memory_order_relaxed);
  safe_ = 0;
  finished_.store(0, std::memory_order_relaxed);
  next_.store(0, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    ++copies_;
  }
  changed_.notify_one();
}

/// The thread counts a piece shortly after it has marked it as done, and is_done() reads the count.
void StateCopier::finish() {
  copy_up_to(pieces_.size());
  while (!is_done()) std::this_thread::yield();
}

void StateCopier::work() {
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || copies_ != seen; });
      if (stop_) return;
      seen = copies_;
    }
    while (copy_next(pieces_.size())) {
    }
  }
}

/// Takes the next of the first `limit` pieces, if one is left, and copies it.
bool StateCopier::copy_next(size_t limit) {
  size_t at = next_.load(std::memory_order_acquire);
  do {
    if (at >= limit) return false;
  } while (!next_.compare_exchange_weak(at, at + 1, std::memory_order_acq_rel));
  Piece& piece = pieces_[at];
  std::memcpy(piece.to, piece.from, piece.bytes);
  piece.done.store(true, std::memory_order_release);
  finished_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

void StateCopier::copy_up_to(size_t count) {
  while (copy_next(count)) {
  }
  for (; safe_ < count; ++safe_) {
    while (!pieces_[safe_].done.load(std::memory_order_acquire)) std::this_thread::yield();
  }
}

}  // namespace trainctl
