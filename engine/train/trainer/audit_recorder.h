// The work of a step audit around the steps of a rank, on a CPU or on a GPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "engine/train/trainer/step_audit.h"

namespace trainctl {

/// The two results of an audited step, for a report of their difference.
struct AuditedResults {
  AuditedValues first, replayed;
};

/// Records the steps that are to be audited, and starts their replays. All functions are called on the training thread.
class AuditRecorder {
 public:
  explicit AuditRecorder(AuditOptions options) : options_(std::move(options)) {
    check(options_.every > 0, "audits have an interval");
  }
  virtual ~AuditRecorder() = default;  ///< a derived class calls join() in its own, because a replay uses its members

  /// The communicator that the rank must use.
  virtual Communicator& communicator() = 0;
  /// Called once with the executor that is audited and its options. The executor outlives all calls except the
  /// destructor.
  virtual void attach(Executor& audited, const ExecutorOptions& options) = 0;

  bool is_due(const StepScalars& scalars) const { return (int64_t{scalars.step} + 1) % options_.every == 0; }
  /// Called before each step. Throws AuditFailed if a replay has ended with different bits.
  virtual void before_step() = 0;
  /// Called before a step that is to be audited. Waits for the replay of an earlier step, and throws the same errors as
  /// before_step.
  virtual void begin(const std::byte* inputs, const StepScalars& scalars) = 0;
  /// Called after the audited step was started.
  virtual void end() = 0;
  virtual void step_finished() {}
  /// Waits for the replay to end. Throws the same errors as before_step.
  void finish();

  virtual double overhead() const = 0;
  int64_t audited_steps() const { return audited_; }
  const AuditOptions& options() const { return options_; }

 protected:
  using Replay = std::function<std::optional<AuditMismatch>()>;

  /// Runs `replay` on a thread of its own. No other replay may be running.
  void start_replay(Replay replay);
  bool is_replaying() const { return thread_.joinable(); }  ///< or has ended, and finish() was not called
  bool has_ended() const { return thread_.joinable() && has_ended_; }
  void join();

  /// Lets the replay of a recorded step run to its end.
  virtual void release() {}
  /// Called when the replay has ended, with or without an error.
  virtual void replay_ended() {}
  /// The two results of the audited step; available after a mismatch.
  virtual AuditedResults results() const = 0;

  AuditOptions options_;
  int64_t audited_ = 0;

 private:
  std::optional<AuditMismatch> mismatch_;
  std::exception_ptr error_;
  std::atomic<bool> has_ended_{false};
  std::thread thread_;
};

/// Adds the result of a third run to `found`. `is_elsewhere`: it ran on another core or card than both others. If not,
/// it ran where the step did, and can only show that the step's fault was transient.
void decide(AuditMismatch& found, bool is_as_replay, bool is_as_step, bool is_elsewhere);

/// Runs `work` on a new thread, waits for it, and rethrows its exception.
void on_own_thread(const std::function<void()>& work);

std::unique_ptr<AuditRecorder> make_core_audit(const Program& program, Communicator& comm, AuditOptions options);
std::unique_ptr<AuditRecorder> make_card_audit(const Program& program, Communicator& comm, AuditOptions options);

}  // namespace trainctl
