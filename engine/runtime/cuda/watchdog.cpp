// Watches over the steps that a device runs without its host.
#include "engine/runtime/cuda/watchdog.h"

#include "engine/runtime/comm/peers.h"
#include "engine/runtime/cuda/handles.h"

namespace trainctl::cuda {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};

const Instruction* instruction_at(const Program& program, RankPosition position) {
  const bool known = position.instruction >= 0 && position.instruction < static_cast<int>(program.instructions.size());
  return known ? &program.instructions[static_cast<size_t>(position.instruction)] : nullptr;
}

}  // namespace

Watchdog::Watchdog(const Program& program, Communicator& ranks, CudaCommunicator* peers, const PositionWord* position,
                   double timeout_seconds)
    : program_(program), ranks_(ranks), peers_(peers), position_(position), timeout_seconds_(timeout_seconds) {
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ending_.notify_all();
  thread_.join();
}

void Watchdog::throw_if_given_up() const {
  if (gave_up_) throw CommError(*error_);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, kBetweenLooks, [this] { return end_; })) {
    if (!gave_up_) look();
  }
}

void Watchdog::look() {
  const uint64_t finished = finished_;  // read before `started`, which is never less
  const Progress now{*position_, started_, finished};
  const RankPosition position = publish(now);
  if (now != last_) {
    last_ = now;
    changed_ = Clock::now();
  }
  if (peers_ == nullptr || now.started == now.finished) return;
  if (const auto said = peers_->async_error()) return give_up(CommError(call_at(position) + ": " + *said));
  const double idle = std::chrono::duration<double>(Clock::now() - changed_).count();
  auto error = ranks_.hopeless(call_at(position), missing_at(position), idle > timeout_seconds_);
  if (error) give_up(std::move(*error));
}

RankPosition Watchdog::publish(const Progress& now) {
  RankPosition position{last_step_, -1};
  if (now.started != now.finished && now.position != 0) {
    position = {static_cast<uint32_t>(now.position >> 32), static_cast<int32_t>(now.position)};
  }
  if (position.step > 0) ranks_.set_position(position);
  return position;
}

void Watchdog::give_up(CommError error) {
  const RankPosition position{static_cast<uint32_t>(*position_ >> 32), static_cast<int32_t>(*position_)};
  std::string where = "rank " + std::to_string(program_.rank) + ": ";
  if (const Instruction* instruction = instruction_at(program_, position)) where += instruction->name + ": ";
  error_.emplace(where + error.what());
  error_->missing = error.missing;
  device_is_lost = true;
  gave_up_ = true;
  peers_->abort();
}

std::string Watchdog::call_at(RankPosition position) const {
  const Instruction* instruction = instruction_at(program_, position);
  if (instruction == nullptr) return "the step";
  switch (instruction->opcode) {
    case Opcode::collective:
      return std::string(to_string(instruction->collective)) + " over ranks " +
             comm::format_ranks(program_.groups[static_cast<size_t>(instruction->group)]);
    case Opcode::send:
      return "send to rank " + std::to_string(instruction->peer);
    case Opcode::recv:
      return "recv from rank " + std::to_string(instruction->peer);
    default:
      return "the step";
  }
}

/// Ranks of one group run the same instructions: a rank at another one has not arrived, or has gone past.
std::vector<int> Watchdog::missing_at(RankPosition position) const {
  const Instruction* instruction = instruction_at(program_, position);
  std::vector<int> missing;
  if (instruction == nullptr) return missing;
  if (instruction->opcode == Opcode::send || instruction->opcode == Opcode::recv) return {instruction->peer};
  if (instruction->opcode != Opcode::collective) return missing;
  for (int peer : program_.groups[static_cast<size_t>(instruction->group)]) {
    if (peer == program_.rank) continue;
    const RankPosition theirs = ranks_.position_of(peer);
    if (theirs.step != position.step || theirs.instruction != position.instruction) missing.push_back(peer);
  }
  return missing;
}

}  // namespace trainctl::cuda
