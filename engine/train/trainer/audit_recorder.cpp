// Runs the replay of an audited step on a thread of its own, and reports its result on the training thread.
#include "engine/train/trainer/audit_recorder.h"

#include <string>

namespace trainctl {

void AuditRecorder::start_replay(Replay replay) {
  check(!thread_.joinable(), "the replay of an earlier step has ended");
  has_ended_ = false;
  thread_ = std::thread([this, replay = std::move(replay)] {
    try {
      mismatch_ = replay();
    } catch (...) {
      error_ = std::current_exception();
    }
    has_ended_ = true;
  });
}

void AuditRecorder::join() {
  if (thread_.joinable()) thread_.join();
}

void AuditRecorder::finish() {
  release();
  if (!thread_.joinable()) return;
  thread_.join();
  replay_ended();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (!mismatch_) return;
  const AuditMismatch mismatch = *std::exchange(mismatch_, std::nullopt);
  std::string where;
  if (options_.save) {
    const AuditedResults both = results();
    where = options_.save(mismatch, both.first, both.replayed);
  }
  throw AuditFailed(mismatch, where);
}

/// The step and its replay differ, so a third run decides: if it agrees with the replay, the step was wrong; if it
/// agrees with the step, and ran on another core or card than both, the replay was.
void decide(AuditMismatch& found, bool is_as_replay, bool is_as_step, bool is_elsewhere) {
  if (is_as_replay)
    found.first_is_wrong = true;
  else if (is_elsewhere && is_as_step)
    found.first_is_wrong = false;
}

void on_own_thread(const std::function<void()>& work) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

}  // namespace trainctl
