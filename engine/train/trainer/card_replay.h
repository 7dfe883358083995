// Replays a recorded step of a GPU on another GPU of the host, and compares the bits of the state and of all that the
// step gave to other ranks.
#pragma once

#include <cstddef>
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

  /// The inputs that the rank's executor got in the recorded step, and the loss that it returned.
  struct Step {
    int64_t step = 0;  ///< from 1
    std::vector<std::byte> inputs;
    StepScalars scalars;
    std::optional<float> loss;  ///< empty: not known, and not compared
  };
  // The parts of a replay, in this order, on one thread that uses no other card. They throw as an executor does.

  /// Copies the state before the step and its inputs to the second card.
  void load(const Step& step);
  /// Only the step: the second card computes nothing else.
  void run(const Step& step);
  /// Copies the result to the host.
  std::optional<AuditMismatch> compare(const Step& step);

  /// Available after a mismatch.
  AuditedValues first_values() const;
  AuditedValues replayed_values() const;

 private:
  /// The result of one run: the state after it, all that it gave, and its loss.
  struct Result {
    std::vector<std::byte> state, given{};
    float loss = 0;
  };
  std::unique_ptr<Executor> executor_on(const AuditCard& card);
  void load(Executor& executor, const Step& step, std::byte* inputs) const;
  void read_state(Executor& executor, Result& result) const;
  std::vector<std::byte> given_again() const;
  Result recorded(const Step& step) const;
  bool find_difference(const Step& step, const Result& replayed, AuditMismatch& found) const;
  void describe_exchange(const Instruction& instruction, const std::byte* first, const std::byte* again,
                         AuditMismatch& found) const;
  void ask_third_card(const Step& step, AuditMismatch& found);
  AuditedValues values(const std::byte* state) const;

  const Program& program_;
  const std::vector<AuditCard> cards_;
  ExecutorOptions options_;
  ReplayedExchange alone_;  ///< the communicator of executors that communicate with no other rank
  std::unique_ptr<StepTape> tape_;
  std::unique_ptr<Executor> executor_;
  HostBlock inputs_;  ///< the inputs of executor_
  Result replayed_;
};

}  // namespace trainctl
