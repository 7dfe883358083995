// The statuses of a RankBoard as bytes, from one host to another.
#include "engine/runtime/comm/board_changes.h"

#include <algorithm>
#include <cstring>

namespace trainctl {
namespace {

/// A RankStatus without its pid, and without `copied`: copied data is on the other host only once it has arrived there.
struct Snapshot {
  int32_t rank = 0;
  RankState state = RankState::starting;
  uint32_t epoch = 0, step = 0;
  int32_t instruction = -1;
  uint32_t total_epochs = 0;
  uint64_t total_steps = 0, finished_steps = 0, skipped_steps = 0;
  float loss = 0;
  std::array<float, kMostMetrics> metrics{};
  float samples_per_second = 0;
  uint32_t validation_batches = 0, validated_batches = 0;
  uint64_t looks = 0;
};

/// The status of a rank as bytes, which are equal if the statuses are.
std::string snapshot(const RankStatus& status, int rank) {
  std::string bytes(sizeof(Snapshot), '\0');
  Snapshot shot;
  std::memcpy(&shot, bytes.data(), sizeof shot);  // its padding is zero: equal statuses have equal bytes
  shot.rank = rank;
  shot.state = status.state.load(std::memory_order_acquire);
  shot.epoch = status.epoch;
  shot.step = status.step;
  shot.instruction = status.instruction;
  shot.total_epochs = status.total_epochs;
  shot.total_steps = status.total_steps;
  shot.finished_steps = status.finished_steps;
  shot.skipped_steps = status.skipped_steps;
  shot.loss = status.loss;
  for (size_t i = 0; i < shot.metrics.size(); ++i) shot.metrics[i] = status.metrics[i];
  shot.samples_per_second = status.samples_per_second;
  shot.validation_batches = status.validation_batches;
  shot.validated_batches = status.validated_batches;
  shot.looks = status.looks;
  std::memcpy(bytes.data(), &shot, sizeof shot);
  return bytes;
}

/// Writes a snapshot to the status of a rank of another host.
void write(const Snapshot& shot, RankStatus& status) {
  status.epoch = shot.epoch;
  status.step = shot.step;
  status.instruction = shot.instruction;
  status.total_epochs = shot.total_epochs;
  status.total_steps = shot.total_steps;
  status.finished_steps = shot.finished_steps;
  status.skipped_steps = shot.skipped_steps;
  status.loss = shot.loss;
  for (size_t i = 0; i < shot.metrics.size(); ++i) status.metrics[i] = shot.metrics[i];
  status.samples_per_second = shot.samples_per_second;
  status.validation_batches = shot.validation_batches;
  status.validated_batches = shot.validated_batches;
  status.looks = shot.looks;
  if (status.state.load() != RankState::failed) status.state.store(shot.state, std::memory_order_release);
}

}  // namespace

BoardChanges::BoardChanges(const RankBoard& board, std::vector<int> ranks)
    : board_(board), ranks_(std::move(ranks)), seen_(ranks_.size()) {}

std::string BoardChanges::take() {
  std::string changes;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    std::string now = snapshot(board_.status(ranks_[i]), ranks_[i]);
    if (now == seen_[i]) continue;
    changes += now;
    seen_[i] = std::move(now);
  }
  return changes;
}

bool apply_changes(std::string_view changes, const std::vector<int>& ranks, const RankBoard& board) {
  if (changes.size() % sizeof(Snapshot) != 0) return false;
  std::vector<Snapshot> shots(changes.size() / sizeof(Snapshot));
  for (size_t i = 0; i < shots.size(); ++i)
    std::memcpy(&shots[i], changes.data() + i * sizeof(Snapshot), sizeof(Snapshot));
  for (const Snapshot& shot : shots) {
    if (std::find(ranks.begin(), ranks.end(), shot.rank) == ranks.end() || shot.state > RankState::failed) return false;
  }
  for (const Snapshot& shot : shots) write(shot, board.status(shot.rank));
  return true;
}

}  // namespace trainctl
