// The audit of a rank on a GPU: another GPU of the host replays a recorded step (step_audit.h). The trainer calls these
// in the order of its steps; program, inputs and scalars enter, and the results of both GPUs leave (results).
//
//   attach       once: memory for the tape of a recording and for the replay
//   begin, end   around the recorded step: its inputs and scalars are copied, and the executor records it on the tape
//   before_step  of the next step: with peers, waits until the replay has ended (finish); alone, starts it as soon as
//                the recording is complete
//   start        the replay, on the other GPU: CardReplay::run compares its digests with those of the tape
//   release      starts the replay if it has not started yet
//
// AuditedTime measures what this costs the training.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "engine/train/trainer/audit_recorder.h"
#include "engine/train/trainer/card_replay.h"

namespace trainctl {
namespace {

/// Steps while an audit runs, and all others. Pauses without a step in flight (validations) count for neither.
///
///   steps   | 1.0 | 1.0 | 1.1 | 2.1 | 1.0 | …
///   audit               recorded  replayed          costs 1.2 steps
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
  ~CardAudit() override { join(); }

  Communicator& communicator() override { return comm_; }

  /// Collective: the card of every rank gets the memory for a replay before any card takes more memory for its
  /// recordings.
  void attach(Executor& audited, const ExecutorOptions& options) override {
    executor_ = &audited;
    replay_.emplace(program_, comm_.rank(), comm_.num_ranks(), options_.cards, options);
    replay_->prepare(audited.make_tape(), audited.inputs());
    std::vector<int> all(static_cast<size_t>(comm_.num_ranks()));
    std::iota(all.begin(), all.end(), 0);
    comm_.barrier(comm_.open_group(all));
  }

  /// The cards that replay also train, and a collective makes no progress while one of its cards runs a replay. All
  /// ranks therefore wait before the step that follows the recorded one, and replay at the same time. In a job without
  /// peers, the other card trains nothing, so no rank waits.
  void before_step() override {
    const bool is_audited = is_recording_ || is_replaying();
    if (has_ended()) finish();
    time_.step_starts();
    ++started_;
    if (is_audited) audited_until_ = started_;
    if (!is_recording_) return;
    if (comm_.num_ranks() > 1) return finish();
    if (executor_->is_recorded(false)) start();
  }

  void begin(const std::byte* inputs, const StepScalars& scalars) override {
    finish();
    step_.step = int64_t{scalars.step} + 1;
    step_.scalars = scalars;
    step_.inputs.assign(inputs, inputs + executor_->inputs().bytes);
    if (audited_ == 0) open_tape();
    executor_->begin_record(replay_->tape());
  }

  void end() override {
    executor_->end_record();
    is_recording_ = true;
    ++audited_;
  }

  void step_finished() override {
    time_.step_finished(is_recording_ || is_replaying() || finished_ < audited_until_);
    ++finished_;
  }

  double overhead() const override { return time_.overhead(); }

 protected:
  void release() override {
    if (is_recording_) start();
  }
  AuditedResults results() const override { return {replay_->first_values(), replay_->replayed_values()}; }

 private:
  /// Opens the tape once all other memory of the run is allocated. The time of this is not counted as audit time, but
  /// the steps before it are counted.
  void open_tape() {
    std::byte any{};
    executor_->read(0, &any, 1);  // waits for them
    const auto start = AuditedTime::Clock::now();
    try {
      executor_->open_tape(replay_->tape());
      replay_->rehearse();
    } catch (const CommError&) {
      throw;
    } catch (const EnvError& error) {
      throw EnvError(
          fmt::format("train.audit_every: no memory for the recordings of GPU {}, on it or its host: {}; set "
                      "audit_every: 0, or use smaller batches",
                      options_.cards.front().gpu, error.what()));
    }
    time_.leave_out(AuditedTime::Clock::now() - start);
  }

  void start() {
    executor_->is_recorded(true);
    is_recording_ = false;
    start_replay([this, recorded = executor_->tape_digests()] { return replay_->run(step_, recorded); });
  }

  const Program& program_;
  Communicator& comm_;
  Executor* executor_ = nullptr;
  std::optional<CardReplay> replay_;
  CardReplay::Step step_;
  bool is_recording_ = false;
  int64_t started_ = 0, finished_ = 0;
  int64_t audited_until_ = 0;  ///< the last of the started steps, from 1, whose time an audit may have changed
  AuditedTime time_;
};

}  // namespace

std::unique_ptr<AuditRecorder> make_card_audit(const Program& program, Communicator& comm, AuditOptions options) {
  return std::make_unique<CardAudit>(program, comm, std::move(options));
}

}  // namespace trainctl
