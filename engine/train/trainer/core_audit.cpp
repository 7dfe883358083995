// The audit of a rank on a CPU: a thread on another core replays the step. See step_audit.h.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/half.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/trainer/audit_recorder.h"
#include "engine/train/trainer/recorded_exchange.h"

namespace trainctl {
namespace {

using Bytes = std::vector<std::byte>;
using NamedValues = AuditedValues;

struct Recording {
  int64_t step = 0;
  Bytes arena, inputs;
  StepScalars scalars;
  std::vector<RecordedExchange> exchanges;
  NamedValues after;
  float loss = 0;
  int core = -1;
};

/// All that this rank keeps from step to step, by "weight/fc1.weight", and its gradients.
void keep_values(const Program& program, Executor& executor, NamedValues& values) {
  std::map<std::string, size_t> filled;
  const auto add = [&](const StoredRange& range) {
    if (range.count == 0 || !is_float(range.dtype)) return;
    const std::string name = std::string(range.slot) + "/" + range.variable->name;
    std::vector<float>& all = values[name];
    const size_t before = filled[name];
    filled[name] += static_cast<size_t>(range.count);
    all.resize(std::max(all.size(), filled[name]));  // the memory of an earlier step is used again
    if (range.dtype == DType::f32) {
      executor.read(range.offset, all.data() + before, range.bytes());
      return;
    }
    std::vector<uint16_t> halves(static_cast<size_t>(range.count));
    executor.read(range.offset, halves.data(), range.bytes());
    halves_to_floats(range.dtype, halves.data(), range.count, all.data() + before);
  };
  for (const StoredRange& range : stored_ranges(program)) add(range);
  for (const StoredRange& range : gradient_ranges(program)) add(range);
}

bool contains(const std::vector<int>& cores, int core) {
  return std::find(cores.begin(), cores.end(), core) != cores.end();
}

bool move_to(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

/// Moves the calling thread, and the threads that it starts later, to `count` cores that are not in `others`, or to all
/// such cores if there are fewer. Returns these cores; without any, the thread stays, and its core is returned.
std::vector<int> move_to_other_cores(const std::vector<int>& others, int count) {
  const auto cores = static_cast<int>(std::min<long>(sysconf(_SC_NPROCESSORS_CONF), CPU_SETSIZE));
  const int start = others.empty() ? 0 : others.back() + 1;
  std::vector<int> found;
  for (int i = 0; i < cores && static_cast<int>(found.size()) < count; ++i) {
    const int core = (start + i) % cores;
    if (!contains(others, core) && move_to({core})) found.push_back(core);
  }
  if (found.empty()) return {sched_getcpu()};
  move_to(found);
  return found;
}

class CoreAudit final : public AuditRecorder {
 public:
  CoreAudit(const Program& program, Communicator& comm, AuditOptions options)
      : AuditRecorder(std::move(options)), program_(program), comm_(comm), replayed_(comm.rank(), comm.num_ranks()) {
    options_.executor.print = [](const Operand&, const void*, int) {};
    options_.executor.timeline = nullptr;
    options_.executor.start_up = nullptr;
    options_.executor.on_communication = nullptr;
    options_.executor.on_prepared = nullptr;
  }
  ~CoreAudit() override { join(); }

  Communicator& communicator() override { return comm_; }
  void attach(Executor& audited, const ExecutorOptions&) override { audited_executor_ = &audited; }

  void before_step() override {
    if (first_step_ < 0) first_step_ = now();
    if (has_ended()) finish();
  }

  double overhead() const override {
    const double all = now() - first_step_;
    return first_step_ < 0 || all <= 0 ? 0 : (recorded_seconds_ + replayed_seconds_) / all;
  }

  void begin(const std::byte* inputs, const StepScalars& scalars) override {
    finish();
    Executor& executor = *audited_executor_;
    const double begin = now();
    recording_.exchanges.clear();
    recording_.step = int64_t{scalars.step} + 1;
    recording_.scalars = scalars;
    recording_.core = sched_getcpu();
    recording_.arena.resize(static_cast<size_t>(program_.arena_bytes));
    executor.read(0, recording_.arena.data(), program_.arena_bytes);
    recording_.inputs.assign(inputs, inputs + executor.inputs().bytes);
    comm_.record_to(&recording_.exchanges);
    recorded_seconds_ += now() - begin;
  }

  void end() override {
    Executor& executor = *audited_executor_;
    comm_.record_to(nullptr);
    const double begin = now();
    keep_values(program_, executor, recording_.after);
    if (program_.loss_offset >= 0) executor.read(program_.loss_offset, &recording_.loss, sizeof recording_.loss);
    ++audited_;
    start_replay([this] {
      const double begin_replay = now();
      std::optional<AuditMismatch> found = replay();
      // The time of one thread is that on its core, without waits for a core that others use.
      replay_seconds_ =
          (has_one_thread() ? thread_seconds() : now() - begin_replay) - std::exchange(prepared_seconds_, 0);
      return found;
    });
    recorded_seconds_ += now() - begin;
  }

 protected:
  void replay_ended() override { replayed_seconds_ += std::exchange(replay_seconds_, 0); }
  AuditedResults results() const override { return {recording_.after, values_}; }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  bool has_one_thread() const { return options_.executor.threads <= 1; }
  static double thread_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  /// The results of a step: the values after it, its loss, and the first call in which it gave other bits than
  /// recorded.
  struct Result {
    NamedValues values;
    float loss = 0;
    std::string sent{};  ///< empty: it gave what was recorded
  };

  /// Replays the step on the calling thread.
  Result run_again() {
    if (!executor_) {
      const double begin = has_one_thread() ? thread_seconds() : now();
      executor_ = make_cpu_executor(program_, replayed_, options_.executor);
      prepared_seconds_ = (has_one_thread() ? thread_seconds() : now()) - begin;
    }
    replayed_.replay(recording_.exchanges);
    executor_->write(0, recording_.arena.data(), program_.arena_bytes);
    const HostBlock inputs = executor_->allocate_inputs(std::max<int64_t>(executor_->inputs().bytes, 1));
    std::copy(recording_.inputs.begin(), recording_.inputs.end(), inputs.get());
    executor_->start_step(inputs.get(), recording_.scalars);
    Result result{{}, executor_->finish_step(), replayed_.difference()};
    keep_values(program_, *executor_, result.values);
    return result;
  }

  static bool same(const NamedValues& a, const NamedValues& b, AuditMismatch* at) {
    for (const auto& [name, values] : a) {
      const std::vector<float>& other = b.at(name);
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::bit_cast<uint32_t>(values[i]) == std::bit_cast<uint32_t>(other[i])) continue;
        if (at != nullptr) {
          at->tensor = name;
          at->element = static_cast<int64_t>(i);
          at->first = double{values[i]};
          at->replayed = double{other[i]};
        }
        return false;
      }
    }
    return true;
  }

  static bool same_loss(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }
  static bool same(const Result& a, const Result& b) {
    return a.sent == b.sent && same_loss(a.loss, b.loss) && same(a.values, b.values, nullptr);
  }
  bool is_as_recorded(const Result& result) const {
    return result.sent.empty() && same_loss(result.loss, recording_.loss) &&
           same(recording_.after, result.values, nullptr);
  }

  /// Moves the thread to as many cores as the rank has threads.
  std::vector<int> move_away(const std::vector<int>& others) const {
    return move_to_other_cores(others, std::max(options_.executor.threads, 1));
  }

  std::optional<AuditMismatch> replay() {
    AuditMismatch found;
    found.step = recording_.step;
    found.first_core = recording_.core;
    std::vector<int> used = move_away({recording_.core});
    found.replay_core = used.front();
    Result result = run_again();
    if (is_as_recorded(result)) return std::nullopt;
    if (same(recording_.after, result.values, &found)) found.tensor = result.sent.empty() ? "loss" : result.sent;
    Result third;
    bool has_third = false;
    on_own_thread([&] {  // threads that an executor starts stay where they are
      std::vector<int> all = used;
      all.push_back(recording_.core);
      found.third_core = move_away(all).front();
      has_third = !contains(all, found.third_core);
      if (!has_third) found.third_core = move_away(used).front();
      third = run_again();
    });
    decide(found, same(third, result), is_as_recorded(third), has_third);
    values_ = std::move(result.values);
    return found;
  }

  const Program& program_;
  RecordingExchange comm_;
  Executor* audited_executor_ = nullptr;
  ReplayedExchange replayed_;
  std::unique_ptr<Executor> executor_;
  Recording recording_;
  NamedValues values_;
  double first_step_ = -1;  ///< when the first step started
  double recorded_seconds_ = 0, replayed_seconds_ = 0;
  double prepared_seconds_ = 0;  ///< once, as at the start of a run
  double replay_seconds_ = 0;    ///< the current replay, once it has ended
};

}  // namespace

std::unique_ptr<AuditRecorder> make_core_audit(const Program& program, Communicator& comm, AuditOptions options) {
  return std::make_unique<CoreAudit>(program, comm, std::move(options));
}

}  // namespace trainctl
