// Compares the positions of ranks in their programs.
#include "cli/run/launch/rank_states.h"

#include <algorithm>
#include <string_view>

#include "engine/compile/report/report.h"
#include "launcher/live_status.h"

namespace trainctl {
namespace {

constexpr double kStandsStill = 1.0;

/// Name of the tensor of an instruction: "recv relu1" -> "relu1".
std::string_view what(const Instruction& message) {
  const std::string_view name = message.name;
  return name.substr(std::min(name.find(' '), name.size()));
}

/// Returns whether two ranks' instructions belong to one call. A collective has the same name in all programs of its
/// group; a recv belongs to the send of the same tensor.
bool same_call(const RankClasses& classes, const Instruction& a, int rank_a, const Instruction& b, int rank_b) {
  if (a.micro_batch != b.micro_batch || a.recompute != b.recompute) return false;
  if (a.opcode == Opcode::recv)
    return b.opcode == Opcode::send && classes.peer(rank_a, a) == rank_b && classes.peer(rank_b, b) == rank_a &&
           what(a) == what(b);
  return a.opcode == b.opcode && a.name == b.name;
}

}  // namespace

RankNames RankStates::names() const {
  int workers = 0;
  while (workers < classes_->num_ranks() && classes_->program_of(workers).server < 0) ++workers;
  return {workers};
}

RankStates::Position RankStates::position_of(const RankBoard& memory, int rank) {
  const RankStatus& status = memory.status(rank);
  return {status.step.load(), status.instruction.load()};
}

std::vector<std::string> RankStates::describe(const RankBoard& memory, double now) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < classes_->num_ranks(); ++rank) {
    texts.push_back(describe_rank(memory, rank, now));
    constexpr double kNewLook = 0.05;
    double& waits = waits_[static_cast<size_t>(rank)];
    waits += kNewLook * ((is_in_call(memory, rank) ? 1.0 : 0.0) - waits);
  }
  return texts;
}

bool RankStates::is_in_call(const RankBoard& memory, int rank) const {
  const std::vector<Instruction>& instructions = classes_->program_of(rank).instructions;
  const int32_t at = memory.status(rank).instruction.load();
  if (at < 0 || at >= static_cast<int32_t>(instructions.size())) return false;
  const Opcode opcode = instructions[static_cast<size_t>(at)].opcode;
  return opcode == Opcode::collective || opcode == Opcode::recv;
}

std::optional<int> RankStates::slowest() const {
  constexpr double kMuch = 0.3;
  if (waits_.size() < 2) return {};
  const auto [least, most] = std::minmax_element(waits_.begin(), waits_.end());
  if (*most - *least < kMuch) return {};
  return static_cast<int>(least - waits_.begin());
}

void RankStates::sample(const RankBoard& memory, double now) {
  constexpr double kBetweenSamples = 0.01;
  if (now - window_.last < kBetweenSamples) return;
  window_.last = now;
  const uint32_t step = memory.status(0).step;
  for (int rank = 0; rank < classes_->num_ranks(); ++rank) {
    const RankStatus& status = memory.status(rank);
    if (status.state.load() == RankState::training && status.validation_batches.load() == 0 && step > 1) continue;
    window_ = {.last = now};  // later positions are not compared with earlier ones
    return;
  }
  if (window_.samples == 0) {
    window_.since = now;
    window_.first_step = step;
    window_.busy.assign(static_cast<size_t>(classes_->num_ranks()), 0);
  }
  window_.last_step = step;
  ++window_.samples;
  for (int rank = 0; rank < classes_->num_ranks(); ++rank)
    if (!is_in_call(memory, rank)) ++window_.busy[static_cast<size_t>(rank)];
}

std::vector<double> RankStates::take_window(double seconds) {
  constexpr int64_t kLeastSamples = 100;
  constexpr uint32_t kLeastSteps = 20;
  if (window_.samples < kLeastSamples || window_.last_step - window_.first_step < kLeastSteps ||
      window_.last - window_.since < seconds)
    return {};
  std::vector<double> busy;
  for (const int64_t count : window_.busy)
    busy.push_back(static_cast<double>(count) / static_cast<double>(window_.samples));
  window_ = {.last = window_.last};
  return busy;
}

/// Describes a rank for the live status: "training", "in fc1", or "waiting in fc1 for 2 and 3" if it has stood
/// still.
std::string RankStates::describe_rank(const RankBoard& memory, int rank, double now) {
  const Position at = position_of(memory, rank);
  Seen& seen = seen_[static_cast<size_t>(rank)];
  if (at != seen.position) seen = {at, now};
  switch (memory.status(rank).state.load()) {
    case RankState::starting:
      return "starting";
    case RankState::loading:
      return "loading";
    case RankState::connecting:
      return "connecting";
    case RankState::saving:
      return "saving";
    case RankState::done:
      return "done";
    case RankState::failed:
      return "failed";
    case RankState::training:
      break;
  }
  if (const uint32_t all = memory.status(rank).validation_batches; all > 0)
    return "validating " + std::to_string(memory.status(rank).validated_batches.load()) + "/" + std::to_string(all);
  const std::vector<Instruction>& instructions = classes_->program_of(rank).instructions;
  const bool in_step = at.instruction >= 0 && at.instruction < static_cast<int32_t>(instructions.size());
  if (now - seen.since < kStandsStill || !in_step) return "training";
  const Instruction& call = instructions[static_cast<size_t>(at.instruction)];
  if (call.opcode != Opcode::collective && call.opcode != Opcode::recv) return "in " + call.name;
  const std::vector<int> missing = awaited(memory, rank, at);
  return missing.empty() ? "in " + call.name : "waiting in " + call.name + " for " + names().numbers(missing);
}

std::vector<int> RankStates::awaited(const RankBoard& memory, int rank, const Position& at) const {
  const Instruction& call = classes_->program_of(rank).instructions[static_cast<size_t>(at.instruction)];
  const std::vector<int> group =
      call.opcode == Opcode::recv ? std::vector<int>{classes_->peer(rank, call)} : classes_->group(rank, call.group);
  std::vector<int> missing;
  for (const int other : group) {
    const std::vector<Instruction>& theirs = classes_->program_of(other).instructions;
    const Position there = position_of(memory, other);
    bool reached = other == rank || there.step > at.step;
    const auto end = std::min(there.instruction + 1, static_cast<int32_t>(theirs.size()));
    for (int32_t i = 0; !reached && there.step == at.step && i < end; ++i)
      reached = same_call(*classes_, call, rank, theirs[static_cast<size_t>(i)], other);
    if (!reached) missing.push_back(other);
  }
  return missing;
}

}  // namespace trainctl
