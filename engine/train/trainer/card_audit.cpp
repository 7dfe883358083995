// The audit of a rank on a GPU: another GPU of the host replays the step while the rank continues. See step_audit.h.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/train/trainer/audit_recorder.h"
#include "engine/train/trainer/card_replay.h"

namespace trainctl {
namespace {

/// Steps while an audit runs, and all others. Pauses without a step in flight (validations) count for neither.
///
///   steps   | 1.0 | 1.0 | 1.0 | 1.4 | 1.2 | 1.0 | …
///   audit                     | recorded, copied, replayed |          costs 0.6 steps
class AuditedTime {
 public:
  using Clock = std::chrono::steady_clock;

  void step_starts() {
    if (in_flight_++ == 0) last_ = Clock::now();
  }
  void step_finished(bool is_audited) {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    --in_flight_;
    if (++steps_ <= kFirst) return;  // they load and capture kernels
    Sum& sum = is_audited ? audited_ : plain_;
    sum.seconds += seconds;
    ++sum.steps;
  }
  void leave_out(Clock::duration time) { last_ += time; }

  double overhead() const {
    const double all = audited_.seconds + plain_.seconds;
    if (all <= 0) return 0;
    const double usual = plain_.steps > 0 ? plain_.seconds / static_cast<double>(plain_.steps) : 0;
    return std::max(0.0, audited_.seconds - usual * static_cast<double>(audited_.steps)) / all;
  }

 private:
  static constexpr int64_t kFirst = 4;
  struct Sum {
    double seconds = 0;
    int64_t steps = 0;
  };
  Sum audited_, plain_;
  Clock::time_point last_;
  int64_t in_flight_ = 0, steps_ = 0;
};

class CardAudit final : public AuditRecorder {
 public:
  CardAudit(const Program& program, Communicator& comm, AuditOptions options)
      : AuditRecorder(std::move(options)), program_(program), comm_(comm) {}
  ~CardAudit() override {
    if (thread_.joinable()) thread_.join();
  }

  Communicator& communicator() override { return comm_; }

  /// Collective: every rank's card has the memory of a replay before one of them takes more for its recordings.
  void attach(Executor& audited, const ExecutorOptions& options) override {
    executor_ = &audited;
    replay_.emplace(program_, comm_.rank(), comm_.num_ranks(), options_.cards, options);
    replay_->prepare(audited.make_tape(), audited.inputs());
    std::vector<int> all(static_cast<size_t>(comm_.num_ranks()));
    std::iota(all.begin(), all.end(), 0);
    comm_.barrier(comm_.open_group(all));
  }

  void before_step() override {
    if (thread_.joinable() && is_done_) finish();
    if (is_recording_ && step_.loss && executor_->is_recorded(false)) start_replay();
    time_.step_starts();
    ++started_;
  }

  void begin(const std::byte* inputs, const StepScalars& scalars) override {
    finish();
    step_.step = int64_t{scalars.step} + 1;
    step_.scalars = scalars;
    step_.inputs.assign(inputs, inputs + executor_->inputs().bytes);
    step_.loss.reset();
    recorded_ = started_;
    const auto start = AuditedTime::Clock::now();
    executor_->begin_record(replay_->tape());
    if (audited_ == 0) time_.leave_out(AuditedTime::Clock::now() - start);
  }

  void end() override {
    const auto start = AuditedTime::Clock::now();
    executor_->end_record();
    if (audited_ == 0) time_.leave_out(AuditedTime::Clock::now() - start);
    is_recording_ = true;
    ++audited_;
  }

  void step_finished(float loss) override {
    time_.step_finished(is_recording_ || thread_.joinable());
    if (++finished_ == recorded_) step_.loss = loss;
  }

  void finish() override {
    if (is_recording_) {
      executor_->is_recorded(true);
      start_replay();
    }
    if (!thread_.joinable()) return;
    thread_.join();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    if (!mismatch_) return;
    const AuditMismatch mismatch = *std::exchange(mismatch_, std::nullopt);
    throw AuditFailed(
        mismatch, options_.save ? options_.save(mismatch, replay_->first_values(), replay_->replayed_values()) : "");
  }

  double overhead() const override { return time_.overhead(); }

 private:
  void start_replay() {
    is_recording_ = false;
    is_done_ = false;
    thread_ = std::thread([this] {
      try {
        mismatch_ = replay_->replay(step_);
      } catch (...) {
        error_ = std::current_exception();
      }
      is_done_ = true;
    });
  }

  const Program& program_;
  Communicator& comm_;
  Executor* executor_ = nullptr;
  std::optional<CardReplay> replay_;
  CardReplay::Step step_;
  bool is_recording_ = false;
  int64_t started_ = 0, finished_ = 0;
  int64_t recorded_ = -1;  ///< the recorded one of the started steps, from 1
  std::optional<AuditMismatch> mismatch_;
  std::exception_ptr error_;
  std::atomic<bool> is_done_{true};
  std::thread thread_;
  AuditedTime time_;
};

}  // namespace

std::unique_ptr<AuditRecorder> make_card_audit(const Program& program, Communicator& comm, AuditOptions options) {
  return std::make_unique<CardAudit>(program, comm, std::move(options));
}

}  // namespace trainctl
