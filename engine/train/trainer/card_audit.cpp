// The audit of a rank on a GPU: another GPU of the host replays the step. See step_audit.h.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
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

/// Synchronizes the training thread and a replay:
///
///   replay    load the state ─► loaded │           │ run the step ─► has_run │ compare
///   training  steps …          wait ◄──┘ allow_run ─►          wait ◄────────┘ steps …
class ReplayGate {
 public:
  void close() { set(Stage::loading); }
  void loaded() { set(Stage::loaded); }
  void has_run() { set(Stage::has_run); }
  void allow_run() { set_may_run(true); }
  void abandon() { set_may_run(false); }
  bool is_decided() {
    const std::lock_guard lock(mutex_);
    return may_run_.has_value();
  }

  void wait_until_loaded() { wait(Stage::loaded); }
  void wait_until_run() { wait(Stage::has_run); }
  /// False: the replay must end here.
  bool wait_for_run() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return may_run_.has_value(); });
    return *may_run_;
  }

 private:
  enum class Stage { loading, loaded, has_run };

  void set(Stage stage) {
    const std::lock_guard lock(mutex_);
    if (stage == Stage::loading) may_run_.reset();
    stage_ = stage;
    changed_.notify_all();
  }
  void set_may_run(bool may_run) {
    const std::lock_guard lock(mutex_);
    if (!may_run_) may_run_ = may_run;
    changed_.notify_all();
  }
  void wait(Stage stage) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, stage] { return stage_ >= stage; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::has_run;
  std::optional<bool> may_run_;
};

class CardAudit final : public AuditRecorder {
 public:
  CardAudit(const Program& program, Communicator& comm, AuditOptions options)
      : AuditRecorder(std::move(options)), program_(program), comm_(comm) {}
  ~CardAudit() override {
    gate_.abandon();
    join();
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
    if (has_ended()) finish();
    time_.step_starts();
    ++started_;
    if (is_recording_ && (has_peers() || has_loss()) && executor_->is_recorded(false)) load();
    if (started_ == held_step_) hold();
  }

  void begin(const std::byte* inputs, const StepScalars& scalars) override {
    finish();
    step_.step = int64_t{scalars.step} + 1;
    step_.scalars = scalars;
    step_.inputs.assign(inputs, inputs + executor_->inputs().bytes);
    step_.loss.reset();
    recorded_ = started_;
    held_step_ = has_peers() ? started_ + steps_until_hold() : -1;
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
    time_.step_finished(is_recording_ || is_replaying());
    if (++finished_ == recorded_) loss_ = loss;
  }

  double overhead() const override { return time_.overhead(); }

 protected:
  void release() override {
    if (is_recording_) load();
    if (is_replaying()) allow_run();
  }
  AuditedResults results() const override { return {replay_->first_values(), replay_->replayed_values()}; }

 private:
  /// The cards that replay also train, and a collective makes no progress while one of its cards runs a replay. So all
  /// ranks wait before the same step, and replay at the same time. Without peers the other card trains nothing.
  bool has_peers() const { return comm_.num_ranks() > 1; }

  /// The number of steps during which the state before the recorded step is sent to the other card.
  int64_t steps_until_hold() const {
    constexpr int64_t kMost = 16;
    return std::clamp<int64_t>(options_.every / 4, 1, kMost);
  }

  void load() {
    executor_->is_recorded(true);
    is_recording_ = false;
    gate_.close();
    start_replay([this] {
      struct Opened {
        ~Opened() { gate.has_run(); }
        ReplayGate& gate;
      } opened{gate_};  // also if the replay throws
      replay_->load(step_);
      gate_.loaded();
      if (!gate_.wait_for_run()) return std::optional<AuditMismatch>();
      replay_->run(step_);
      gate_.has_run();
      return replay_->compare(step_);
    });
    if (!has_peers()) allow_run();
  }

  void hold() {
    if (is_recording_) load();
    if (!is_replaying()) return;
    gate_.wait_until_loaded();
    std::byte any{};
    executor_->read(0, &any, 1);  // waits for all started steps
    allow_run();
    gate_.wait_until_run();
  }

  bool has_loss() const { return finished_ >= recorded_; }

  void allow_run() {
    if (gate_.is_decided()) return;  // the replay reads step_
    if (has_loss()) step_.loss = loss_;
    gate_.allow_run();
  }

  const Program& program_;
  Communicator& comm_;
  Executor* executor_ = nullptr;
  std::optional<CardReplay> replay_;
  CardReplay::Step step_;
  ReplayGate gate_;
  bool is_recording_ = false;
  int64_t started_ = 0, finished_ = 0;
  int64_t recorded_ = -1;   ///< the recorded one of the started steps, from 1
  int64_t held_step_ = -1;  ///< the one before which all ranks replay
  float loss_ = 0;          ///< loss of the recorded step, once it is finished
  AuditedTime time_;
};

}  // namespace

std::unique_ptr<AuditRecorder> make_card_audit(const Program& program, Communicator& comm, AuditOptions options) {
  return std::make_unique<CardAudit>(program, comm, std::move(options));
}

}  // namespace trainctl
