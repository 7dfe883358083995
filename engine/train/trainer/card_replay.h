// Replays a recorded step of a GPU on another GPU of the host, and compares the bits of the state and of all that the
// step gave to other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/runtime/executor.h"
#include "engine/runtime/step_tape.h"
#include "engine/train/trainer/recorded_exchange.h"
#include "engine/train/trainer/step_audit.h"

namespace trainctl {

class CardReplay {
 public:
  /// `cards` and `options`: those of the rank (AuditOptions). `program` must outlive it.
  CardReplay(const Program& program, int rank, int ranks, std::vector<AuditCard> cards, ExecutorOptions options);
  ~CardReplay();

  /// Takes the tape, and prepares its replay on the second card. `inputs`: the rank's. Throws EnvError.
  void prepare(std::unique_ptr<StepTape> tape, const InputLayout& inputs);
  /// The tape to record on while no replay runs.
  StepTape& tape() { return *tape_; }
  /// Uses the tape, which has memory now, for the first time: the driver connects the cards then.
  void rehearse();

  /// The inputs that the rank's executor got in the recorded step.
  struct Step {
    int64_t step = 0;  ///< from 1
    std::vector<std::byte> inputs;
    StepScalars scalars;
  };
  /// Runs the step on the second card. `recorded`: the digests of the first one (Executor::tape_digests). Throws as an
  /// executor does. On one thread that uses no other card.
  std::optional<AuditMismatch> run(const Step& step, const std::vector<uint64_t>& recorded);

  /// Available after a mismatch.
  AuditedValues first_values() const { return values(recorded_); }
  AuditedValues replayed_values() const { return values(replayed_); }

 private:
  /// Bytes of one run, copied to the host after a mismatch: the state after it, its loss included, and all that it
  /// gave.
  struct Result {
    std::vector<std::byte> state, given;
    bool operator==(const Result&) const = default;
  };
  std::unique_ptr<Executor> executor_on(const AuditCard& card);
  void run_on(Executor& executor, const Step& step, std::byte* inputs) const;
  std::vector<std::byte> fetched(const std::shared_ptr<std::byte>& memory, int64_t bytes) const;
  Result replayed_on(Executor& executor) const;
  void find_difference(AuditMismatch& found, size_t first_digest) const;
  void describe_exchange(const StepTape::Exchange& exchange, AuditMismatch& found) const;
  void ask_third_card(const Step& step, AuditMismatch& found);
  AuditedValues values(const Result& result) const;

  const Program& program_;
  const std::vector<AuditCard> cards_;
  ExecutorOptions options_;
  ReplayedExchange alone_;  ///< the communicator of executors that communicate with no other rank
  std::unique_ptr<StepTape> tape_;
  std::unique_ptr<Executor> executor_;
  HostBlock inputs_;  ///< the inputs of executor_
  Result recorded_, replayed_;
};

}  // namespace trainctl
