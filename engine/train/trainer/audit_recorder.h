// The work of a step audit around the steps of a rank, on a CPU or on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/train/trainer/step_audit.h"

namespace trainctl {

/// Called on the training thread.
class AuditRecorder {
 public:
  explicit AuditRecorder(AuditOptions options) : options_(std::move(options)) {
    check(options_.every > 0, "audits have an interval");
  }
  virtual ~AuditRecorder() = default;

  /// The communicator that the rank must use.
  virtual Communicator& communicator() = 0;
  /// Once, with the executor that is audited and its options; it outlives all calls but the destructor.
  virtual void attach(Executor&, const ExecutorOptions&) {}

  bool is_due(const StepScalars& scalars) const { return (int64_t{scalars.step} + 1) % options_.every == 0; }
  /// Before each step. Throws AuditFailed if a replay has ended with other bits.
  virtual void before_step() = 0;
  /// Before a step that is due. Waits for the replay of an earlier one, and throws as before_step.
  virtual void begin(const std::byte* inputs, const StepScalars& scalars) = 0;
  /// After that step was started.
  virtual void end() = 0;
  virtual void step_finished(float /*loss*/) {}
  /// Waits for the replay. Throws as before_step.
  virtual void finish() = 0;

  virtual double overhead() const = 0;
  int64_t audited_steps() const { return audited_; }
  const AuditOptions& options() const { return options_; }

 protected:
  AuditOptions options_;
  int64_t audited_ = 0;
};

std::unique_ptr<AuditRecorder> make_core_audit(const Program& program, Communicator& comm, AuditOptions options);
std::unique_ptr<AuditRecorder> make_card_audit(const Program& program, Communicator& comm, AuditOptions options);

}  // namespace trainctl
