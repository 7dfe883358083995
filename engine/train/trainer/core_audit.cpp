// The audit of a rank on a CPU: a thread on another core replays the step. See step_audit.h.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <ctime>
#include <exception>
#include <map>
#include <string>
#include <thread>
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

/// Moves the calling thread to a core other than those; returns the core that it is on afterwards.
int move_to_another_core(const std::vector<int>& others) {
  const long cores = sysconf(_SC_NPROCESSORS_CONF);
  const int start = others.empty() ? 0 : others.back() + 1;
  for (long i = 0; i < cores; ++i) {
    const auto core = static_cast<int>((start + i) % cores);
    if (std::find(others.begin(), others.end(), core) != others.end()) continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0) return core;
  }
  return sched_getcpu();
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
  ~CoreAudit() override {
    if (thread_.joinable()) thread_.join();
  }

  Communicator& communicator() override { return comm_; }
  void attach(Executor& audited, const ExecutorOptions&) override { audited_executor_ = &audited; }

  void before_step() override {
    if (first_step_ < 0) first_step_ = now();
    if (thread_.joinable() && is_done_) finish();
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
    is_done_ = false;
    thread_ = std::thread([this] {
      const double begin_replay = now();
      try {
        replay();
      } catch (...) {
        error_ = std::current_exception();
      }
      // The time of one thread is that on its core, without waits for a core that others use.
      replay_seconds_ =
          (has_one_thread() ? thread_seconds() : now() - begin_replay) - std::exchange(prepared_seconds_, 0);
      is_done_ = true;
    });
    recorded_seconds_ += now() - begin;
  }

  void finish() override {
    if (!thread_.joinable()) return;
    thread_.join();
    replayed_seconds_ += std::exchange(replay_seconds_, 0);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    if (!mismatch_) return;
    const AuditMismatch mismatch = *std::exchange(mismatch_, std::nullopt);
    throw AuditFailed(mismatch, options_.save ? options_.save(mismatch, recording_.after, values_) : "");
  }

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

  /// The names and the values after the step, on the calling thread.
  std::pair<NamedValues, float> run_again() {
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
    const float loss = executor_->finish_step();
    NamedValues values;
    keep_values(program_, *executor_, values);
    return {std::move(values), loss};
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

  void replay() {
    AuditMismatch found;
    found.step = recording_.step;
    found.first_core = recording_.core;
    found.replay_core = move_to_another_core({recording_.core});
    auto [values, loss] = run_again();
    bool is_same = same(recording_.after, values, &found);
    if (const std::string sent = replayed_.difference(); !sent.empty()) {
      if (is_same) found.tensor = sent;
      is_same = false;
    }
    if (is_same && std::bit_cast<uint32_t>(loss) != std::bit_cast<uint32_t>(recording_.loss)) {
      found.tensor = "loss";
      is_same = false;
    }
    if (is_same) return;
    found.third_core = move_to_another_core({recording_.core, found.replay_core});
    // Without a third core the first one shows at least whether its fault was transient.
    const bool has_third = found.third_core != recording_.core && found.third_core != found.replay_core;
    if (!has_third) found.third_core = move_to_another_core({found.replay_core});
    const NamedValues third = run_again().first;
    if (same(third, values, nullptr))
      found.first_is_wrong = true;
    else if (has_third && same(third, recording_.after, nullptr))
      found.first_is_wrong = false;
    values_ = std::move(values);
    mismatch_ = std::move(found);
  }

  const Program& program_;
  RecordingExchange comm_;
  Executor* audited_executor_ = nullptr;
  ReplayedExchange replayed_;
  std::unique_ptr<Executor> executor_;
  Recording recording_;
  NamedValues values_;
  std::optional<AuditMismatch> mismatch_;
  std::exception_ptr error_;
  std::atomic<bool> is_done_{true};
  std::thread thread_;
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
