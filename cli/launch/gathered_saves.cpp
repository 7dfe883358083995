// See gathered_saves.h.
#include "cli/launch/gathered_saves.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace trainctl {
namespace {

/// Ranks are fewer steps apart than that.
constexpr size_t kMostDecisions = SaveBoard::kAhead;

}  // namespace

GatheredSaves::GatheredSaves(std::shared_ptr<SharedMemory> memory, std::vector<int> images, int64_t first)
    : memory_(std::move(memory)), images_(std::move(images)), sizes_(images_.size()), first_(first) {}

bool GatheredSaves::take(const hosts::SaveWord& word, const std::vector<int>& ranks) {
  SaveBoard& board = memory_->saves();
  if (word.name == "wanted") {
    if (word.number < 0) return false;
    if (!decisions_.contains(word.number)) decide(word.number, board.begin(word.number));
    return true;
  }
  if (word.name == "asked") {
    board.ask();
    return true;
  }
  if (word.name == "told") {
    SaveBoard::Position position;
    if (word.text.size() != sizeof position) return false;
    std::memcpy(&position, word.text.data(), sizeof position);
    if (word.number == board.saving()) board.tell(word.number, position);
    return true;
  }
  if (std::find(ranks.begin(), ranks.end(), word.rank) == ranks.end()) return false;
  const auto rank = static_cast<size_t>(word.rank);
  if (word.name == "sized") {
    sizes_[rank] = word.number;
    return word.number >= 0 && ftruncate(images_[rank], word.number) == 0;
  }
  if (word.name == "image") {
    const auto size = static_cast<int64_t>(word.text.size());
    const bool is_written = word.number >= 0 && word.number + size <= sizes_[rank] &&
                            pwrite(images_[rank], word.text.data(), word.text.size(), word.number) == size;
    if (is_written) moved(ranks);
    return is_written;
  }
  if (word.name != "copied") return false;
  if (word.number == board.saving())
    memory_->status(word.rank).copied.store(static_cast<uint64_t>(word.number) + 1, std::memory_order_release);
  return true;
}

/// Ranks whose states are on the way do not stand still, nor does the save that the next one waits for.
void GatheredSaves::moved(const std::vector<int>& ranks) {
  for (const int rank : ranks) memory_->status(rank).looks.fetch_add(1, std::memory_order_relaxed);
  memory_->saves().written_bytes.fetch_add(1, std::memory_order_relaxed);
}

void GatheredSaves::decide(int64_t step, bool saves) {
  decisions_[step] = saves;
  if (decisions_.size() > kMostDecisions) decisions_.erase(decisions_.begin());
  if (saves) {
    saving_ = step;
    is_open_ = false;
    asked_ = memory_->saves().asked();
  } else {
    is_open_ = true;
  }
  words_.push_back({.name = "decided", .number = 2 * step + (saves ? 1 : 0)});
}

std::vector<hosts::SaveWord> GatheredSaves::words() {
  const SaveBoard& board = memory_->saves();
  if (const uint64_t bytes = board.written_bytes; bytes != std::exchange(written_bytes_, bytes))
    words_.push_back({.name = "progress"});
  if (saving_ >= 0 && board.saving() != saving_) {
    saving_ = -1;
    const uint64_t written = board.written();
    words_.push_back({.name = "finished", .number = written != std::exchange(written_, written) ? 1 : 0});
  }
  return std::exchange(words_, {});
}

bool GatheredSaves::wants_hold() const {
  const SaveBoard& board = memory_->saves();
  const bool has_begun = memory_->status(0).finished_steps.load() > static_cast<uint64_t>(std::max<int64_t>(first_, 0));
  return has_begun && saving_ < 0 && board.saving() < 0 && (is_open_ || board.asked() != asked_);
}

/// Steps of saves count from 0, so `highest` is the one that no rank has started.
void GatheredSaves::held(uint64_t highest) {
  const auto step = static_cast<int64_t>(highest);
  if (!wants_hold() || step <= first_ || decisions_.contains(step)) return;
  if (memory_->saves().begin(step)) decide(step, true);
}

}  // namespace trainctl
