// The launcher's side of cli/run/saves/host_snapshots.h: after a rank has failed or a host is lost, recovers the newest
// whole state from the memory of the hosts that still respond.
#include "cli/run/saves/rescued_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr std::array<std::string_view, 6> kMessages = {"snapshot",       "head",          "offered",
                                                       "snapshot_begin", "snapshot_part", "snapshot_end"};

}  // namespace

void RescuedState::begin(const std::vector<std::vector<int>>& hosts) {
  has_begun_ = true;
  for (const std::vector<int>& ranks : hosts) {
    offering_.insert(*std::min_element(ranks.begin(), ranks.end()));
    asked_.insert(ranks.begin(), ranks.end());
  }
  messages_.push_back({.name = "offer"});
  if (hosts.empty()) why_ = "no host remains";
}

bool RescuedState::knows(const hosts::SaveMessage& message) {
  return std::find(kMessages.begin(), kMessages.end(), message.name) != kMessages.end();
}

bool RescuedState::take(const hosts::SaveMessage& message, const std::vector<int>& ranks) {
  if (!has_begun_ || std::find(ranks.begin(), ranks.end(), message.rank) == ranks.end()) return false;
  received_bytes_ += 1 + static_cast<int64_t>(message.text.size());
  RankSnapshot& snapshot = snapshots_[message.rank];
  if (message.name == "snapshot") {
    if (message.number < 0 || snapshot.steps.size() >= 2) return false;
    snapshot.steps.insert(message.number);
    return true;
  }
  if (message.name == "head") {
    snapshot.bytes = message.number;
    try {
      const std::span<const uint8_t> head(reinterpret_cast<const uint8_t*>(message.text.data()), message.text.size());
      snapshot.entries =
          parse_safetensors_header(head, message.number, "the state of rank " + std::to_string(message.rank)).entries;
    } catch (const EnvError&) {
      return false;
    }
    return true;
  }
  if (message.name == "offered") {
    if (offering_.erase(message.rank) == 0) return false;
    if (offering_.empty() && why_.empty()) choose();
    return true;
  }
  if (!to_fetch_.contains(message.rank)) return false;
  if (message.name == "snapshot_begin") {
    if (message.number != step_ || message.text.size() != sizeof position_ || snapshot.has_begun) return false;
    std::memcpy(&position_, message.text.data(), sizeof position_);
    snapshot.has_begun = true;
    snapshot.image.resize(static_cast<size_t>(snapshot.bytes));
    return true;
  }
  if (message.name == "snapshot_part") {
    const auto size = static_cast<int64_t>(message.text.size());
    if (!snapshot.has_begun || message.number < 0 || message.number > snapshot.bytes - size) return false;
    std::memcpy(snapshot.image.data() + message.number, message.text.data(), message.text.size());
    return true;
  }
  return snapshot.has_begun && to_fetch_.erase(message.rank) > 0;  // snapshot_end
}

/// Chooses the newest step that all ranks have, and pieces that cover its state exactly once.
void RescuedState::choose() {
  std::vector<int> ranks;
  std::vector<std::vector<SafetensorsEntry>> images;
  std::set<int64_t> common;
  for (const int rank : asked_) {
    const RankSnapshot& snapshot = snapshots_[rank];
    if (ranks.empty()) common = snapshot.steps;
    std::erase_if(common, [&](int64_t step) { return !snapshot.steps.contains(step); });
    ranks.push_back(rank);
    images.push_back(snapshot.entries);
  }
  if (common.empty()) {
    why_ = "the ranks have no step in common";
    return;
  }
  step_ = *common.rbegin();
  Cover cover = cover_state(job_, images);
  if (!cover.missing.empty()) {
    why_ = "no remaining rank has " + cover.missing;
    return;
  }
  is_chosen_ = true;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (cover.pieces[i].empty()) continue;
    snapshots_[ranks[i]].pieces = std::move(cover.pieces[i]);
    to_fetch_.insert(ranks[i]);
    messages_.push_back({.name = "fetch", .rank = ranks[i], .number = step_});
  }
}

std::vector<hosts::SaveMessage> RescuedState::messages() { return std::exchange(messages_, {}); }

std::optional<int64_t> RescuedState::waits() const {
  const bool is_over = !has_begun_ || !why_.empty() || is_complete();
  return is_over ? std::nullopt : std::optional(received_bytes_);
}

std::vector<std::vector<std::byte>> RescuedState::images(int num_ranks) const {
  std::vector<std::vector<std::byte>> images(static_cast<size_t>(num_ranks));
  for (const auto& [rank, snapshot] : snapshots_)
    if (!snapshot.pieces.empty()) images[static_cast<size_t>(rank)] = image_of(snapshot.image, snapshot.pieces);
  return images;
}

}  // namespace trainctl
