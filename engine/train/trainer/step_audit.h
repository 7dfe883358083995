// train.audit_every: replays a step of a rank on another core or card, and compares bits.
//
//   training core   [ step 499, recorded ][ step 500 ][ step 501 …
//   another core                          [ replay of 499: same state, inputs, counters and received data ]
//
// The recording has the state before the step, the step's inputs, and everything that other ranks sent. The replay has
// its own arena and no communication: its receives return the recorded data, and its sends are compared with the
// recorded ones. If its state or a message differs in any bit, a third run on another core or card decides which one
// was wrong. A rank on a CPU records its whole arena and the calls of its communicator; a rank on a GPU has a tape
// (runtime/step_tape.h), and another GPU of the host replays it (card_replay.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/runtime/communicator.h"
#include "engine/runtime/executor.h"
#include "engine/train/trainer/train_observer.h"

namespace trainctl {

/// The bits of a replay differ from those of the step.
struct AuditMismatch {
  int64_t step = 0;                ///< from 1
  const char* device = "core";     ///< or "GPU": what the numbers below are of
  std::string tensor;              ///< "weight/fc1.weight", "loss", or the communication "all_reduce 3 of the step"
  int64_t element = -1;            ///< first one with other bits; -1: not known
  double first = 0, replayed = 0;  ///< its values
  int first_core = -1, replay_core = -1, third_core = -1;  ///< -1: not known, or no third run
  std::optional<bool> first_is_wrong;                      ///< according to the third run; nullopt: it does not show it
  std::string text() const;                                ///< one sentence without the rank
};

/// Thrown on the training thread by a step after the audited one, or at the end.
class AuditFailed : public EnvError {
 public:
  AuditFailed(const AuditMismatch& mismatch, const std::string& where);
  const AuditMismatch& mismatch() const { return mismatch_; }

 private:
  AuditMismatch mismatch_;
};

/// This rank's part of each value, by names such as "weight/fc1.weight".
using AuditedValues = std::map<std::string, std::vector<float>>;

/// Writes both as safetensors files to `folder`/audits, and returns their common path: "…/step_500.rank_3.*". Returns
/// "" if they cannot be written.
std::string save_audit(const std::string& folder, int rank, const AuditMismatch& mismatch, const AuditedValues& first,
                       const AuditedValues& replayed);

/// A card that this process can use.
struct AuditCard {
  int gpu = -1;  ///< the host's index, for messages
  std::function<std::unique_ptr<Executor>(const Program&, Communicator&, const ExecutorOptions&)> make{};
};

struct AuditOptions {
  int64_t every = 0;           ///< steps; at least 1
  ExecutorOptions executor{};  ///< seed and threads of the rank
  /// Saves the two states, each as named f32 tensors of this rank's parts, and returns where. Called before
  /// AuditFailed.
  std::function<std::string(const AuditMismatch&, const AuditedValues& first, const AuditedValues& replayed)> save{};
  /// For tests: changes the arena after each step, as a core that computes incorrectly would.
  std::function<void(int64_t step, Executor&)> corrupt{};
  /// The rank's own card first, then those that replay its steps; empty: the rank runs on the CPU.
  std::vector<AuditCard> cards{};
};

class AuditRecorder;

class StepAudit final : public StateObserver {
 public:
  /// `program` and `comm` must outlive it.
  StepAudit(const Program& program, Communicator& comm, AuditOptions options);
  ~StepAudit() override;
  StepAudit(const StepAudit&) = delete;
  StepAudit& operator=(const StepAudit&) = delete;

  /// The communicator that the rank must use.
  Communicator& communicator();
  /// The executor that the rank must use in place of `audited`, which was made with communicator() and these options.
  /// Collective if the job runs on GPUs.
  std::unique_ptr<Executor> around(std::unique_ptr<Executor> audited, const ExecutorOptions& options);

  /// Waits for the last replay. Throws AuditFailed.
  void at_end(int64_t step, Executor& executor) override;
  int64_t audited_steps() const;
  /// The time of all recordings and replays, relative to the time of all steps so far. A replay on another core counts
  /// as if it had delayed the steps. The first replay also prepares its kernels, once; this does not count. On GPUs:
  /// the time by which steps took longer while an audit ran.
  double overhead() const;

 private:
  std::unique_ptr<AuditRecorder> recorder_;
};

}  // namespace trainctl
