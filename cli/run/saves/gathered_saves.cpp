// The launcher's side of saves on several hosts (cli/run/saves/host_saves.h): decides for all hosts which states are
// saved, and gathers the ranks' images, so that a checkpoint survives the loss of any other host.
#include "cli/run/saves/gathered_saves.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace trainctl {
namespace {

/// Ranks are always fewer than this many steps apart, so older decisions are not needed.
constexpr size_t kMostDecisions = SaveBoard::kAhead;

}  // namespace

GatheredSaves::GatheredSaves(std::shared_ptr<SharedMemory> memory, std::vector<int> images, int64_t first,
                             SaveAfter after)
    : memory_(std::move(memory)),
      images_(std::move(images)),
      sizes_(static_cast<size_t>(memory_->num_ranks())),
      first_(first),
      after_(after) {}

int GatheredSaves::image(int rank) const {
  return images_[static_cast<size_t>(set_) * sizes_.size() + static_cast<size_t>(rank)];
}

bool GatheredSaves::take(const hosts::SaveMessage& message, const std::vector<int>& ranks) {
  if (message.name == "wanted") {
    if (message.number < 0) return false;
    if (!decisions_.contains(message.number)) answer(message.number);
    return true;
  }
  if (message.name == "asked") {
    memory_->saves().ask();
    return true;
  }
  if (message.name == "awaits") {
    if (message.number < 0) return false;
    memory_->saves().await_room(message.number);
    return true;
  }
  if (message.name == "position" || message.name == "validated") {
    SaveBoard::Position position;
    if (message.text.size() != sizeof position) return false;
    std::memcpy(&position, message.text.data(), sizeof position);
    if (message.name == "validated") {
      memory_->saves().report_validated(message.number, position);
      return true;
    }
    if (message.number == gathering_) reported_ = position;
    offer_if_complete();
    return true;
  }
  if (std::find(ranks.begin(), ranks.end(), message.rank) == ranks.end()) return false;
  const auto rank = static_cast<size_t>(message.rank);
  if (message.name == "sized") {
    if (message.number < 0) return false;
    sizes_[rank] = message.number;
    return gathering_ < 0 || ftruncate(image(message.rank), message.number) == 0;
  }
  if (message.name == "image") {
    const auto size = static_cast<int64_t>(message.text.size());
    if (message.number < 0 || message.number + size > sizes_[rank]) return false;
    if (gathering_ < 0) return true;
    moved();
    return pwrite(image(message.rank), message.text.data(), message.text.size(), message.number) == size;
  }
  if (message.name != "copied") return false;
  if (message.number == gathering_) copied_.insert(message.rank);
  offer_if_complete();
  return true;
}

/// Reports progress to three kinds of ranks although no step ends: ranks whose states are being sent, ranks that wait
/// for these, and ranks whose save must wait for the previous one.
void GatheredSaves::moved() {
  for (int rank = 0; rank < memory_->num_ranks(); ++rank)
    memory_->status(rank).looks.fetch_add(1, std::memory_order_relaxed);
  memory_->saves().written_bytes.fetch_add(1, std::memory_order_relaxed);
}

void GatheredSaves::answer(int64_t step) {
  if (!can_begin() && after_ == SaveAfter::gathered)
    waiting_ = step;
  else
    decide(step, can_begin());
}

void GatheredSaves::decide(int64_t step, bool saves) {
  decisions_[step] = saves;
  if (decisions_.size() > kMostDecisions) decisions_.erase(decisions_.begin());
  if (saves)
    begin(step);
  else
    was_skipped_ = true;
  messages_.push_back({.name = "decided", .number = 2 * step + (saves ? 1 : 0)});
}

void GatheredSaves::begin(int64_t step) {
  saving_ = gathering_ = step;
  memory_->saves().begin_at(step);
  was_skipped_ = false;
  asked_ = memory_->saves().asked();
  set_ = memory_->saves().free_set();
  copied_.clear();
  reported_.reset();
  // Hosts report only sizes that have changed. A failure to resize is noticed when the image is filled.
  for (int rank = 0; rank < memory_->num_ranks(); ++rank)
    if (ftruncate(image(rank), sizes_[static_cast<size_t>(rank)]) != 0) break;
}

void GatheredSaves::offer_if_complete() {
  if (gathering_ < 0 || !reported_ || copied_.size() < sizes_.size()) return;
  memory_->saves().offer(std::exchange(gathering_, -1), set_, *reported_);
  if (after_ == SaveAfter::gathered) finish(true);
}

/// Allows the hosts to fill their images again.
void GatheredSaves::finish(bool kept) {
  saving_ = -1;
  messages_.push_back({.name = "finished", .number = kept ? 1 : 0});
  if (waiting_ >= 0) decide(std::exchange(waiting_, -1), true);
}

std::vector<hosts::SaveMessage> GatheredSaves::messages() {
  const SaveBoard& board = memory_->saves();
  if (const uint64_t bytes = board.written_bytes; bytes != std::exchange(written_bytes_, bytes))
    messages_.push_back({.name = "progress"});
  if (const uint64_t tries = board.failed_tries(); tries != std::exchange(failed_tries_, tries))
    messages_.push_back({.name = "refused"});
  if (saving_ >= 0 && gathering_ < 0 && !board.is_busy()) {
    const uint64_t written = board.written();
    finish(written != std::exchange(written_, written));
  }
  return std::exchange(messages_, {});
}

bool GatheredSaves::wants_hold() const {
  const bool has_begun = memory_->status(0).finished_steps.load() > static_cast<uint64_t>(std::max<int64_t>(first_, 0));
  return has_begun && can_begin() && (was_skipped_ || memory_->saves().asked() != asked_);
}

/// Steps of saves count from 0, so `highest` is the first step that no rank has started.
void GatheredSaves::gates_held(uint64_t highest) {
  const auto step = static_cast<int64_t>(highest);
  if (wants_hold() && step > first_ && !decisions_.contains(step)) decide(step, true);
}

}  // namespace trainctl
