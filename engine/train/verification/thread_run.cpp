// Trains a planned job on CPUs with its ranks as threads of this process, and keeps everything that two plans of a job
// must agree on.
#include "engine/train/verification/thread_run.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/graph/half.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/initial_weights.h"
#include "engine/runtime/parts.h"
#include "engine/runtime/routes.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/trainer/trainer.h"

namespace trainctl {
namespace {

/// Memory after each arena that no kernel may change.
constexpr int64_t kGuardBytes = 4096;
constexpr std::byte kGuard{0x5a};

/// The parts of a tensor that the ranks have, put together.
struct GatheredTensor {
  std::vector<float> values;
  std::vector<bool> known;
  int64_t differing = -1;  ///< first element at which replicas differ
};
using GatheredTensors = std::map<std::string, GatheredTensor>;

struct TimesOfRank {
  GatheredTensors* start = nullptr;
  GatheredTensors* gradients = nullptr;
  GatheredTensors* end = nullptr;
};

std::vector<float> read_floats(Executor& executor, int64_t offset, int64_t count, DType dtype) {
  std::vector<float> values(static_cast<size_t>(count));
  if (is_half(dtype)) {
    std::vector<uint16_t> halves(values.size());
    executor.read(offset, halves.data(), count * byte_size(dtype));
    halves_to_floats(dtype, halves.data(), count, values.data());
  } else {
    executor.read(offset, values.data(), count * byte_size(dtype));
  }
  return values;
}

/// Adds elements [first, first + values.size()) of a rank's part.
void add_part(const Variable& variable, int64_t first, const std::vector<float>& values, GatheredTensor& whole) {
  const auto size = static_cast<size_t>(num_elements(variable.global_shape));
  whole.values.resize(size);
  whole.known.resize(size);
  size_t next = 0;
  for (const Box& box : boxes_of(variable, first, static_cast<int64_t>(values.size()))) {
    for_each_run(variable.global_shape, box.offset, box.shape, [&](int64_t, int64_t in_whole, int64_t length) {
      for (int64_t i = in_whole; i < in_whole + length; ++i) {
        const auto at = static_cast<size_t>(i);
        const float value = values[next++];
        if (whole.known[at] && whole.differing < 0 && std::memcmp(&whole.values[at], &value, sizeof value) != 0)
          whole.differing = i;
        whole.values[at] = value;
        whole.known[at] = true;
      }
    });
  }
}

/// Adds everything that this rank has of weights, optimizer states and running statistics.
void add_state(const Program& program, Executor& executor, bool weights_alone, GatheredTensors& tensors) {
  for (const StoredRange& range : stored_ranges(program)) {
    if (range.is_copy || !range.is_fresh || range.count == 0 || !is_float(range.dtype)) continue;
    if (has_blocks(range.variable->packing)) continue;
    const bool is_weight = has_initial_values(range);
    if (weights_alone && !is_weight) continue;
    std::string name = range.variable->name;
    if (!is_weight) name += ":" + std::string(range.slot);
    add_part(*range.variable, range.first, read_floats(executor, range.offset, range.count, range.dtype),
             tensors[name]);
  }
}

void add_gradients(const Program& program, Executor& executor, GatheredTensors& tensors) {
  for (const StoredRange& range : gradient_ranges(program))
    if (range.own_count > 0 && is_float(range.dtype))
      add_part(*range.variable, range.own_first,
               read_floats(executor, range.own_offset(), range.own_count, range.dtype), tensors[range.variable->name]);
}

TensorValues values_of(GatheredTensors tensors, const std::string& when, std::vector<std::string>& faults) {
  TensorValues values;
  for (auto& [name, tensor] : tensors) {
    if (tensor.differing >= 0)
      faults.push_back("replicas of " + name + " differ " + when + ", first at element " +
                       std::to_string(tensor.differing));
    if (const auto missing = std::find(tensor.known.begin(), tensor.known.end(), false); missing != tensor.known.end())
      faults.push_back("no rank has element " + std::to_string(missing - tensor.known.begin()) + " of " + name + " " +
                       when);
    values.emplace(name, std::move(tensor.values));
  }
  return values;
}

/// Reads the state of a rank between its steps. One at a time, because all ranks add to the same tensors.
class StateReader final : public StateObserver {
 public:
  StateReader(const Program& program, const ThreadRunOptions& options, const TimesOfRank& times, std::mutex& mutex)
      : program_(program), options_(options), times_(times), mutex_(mutex) {}

  void before_step(int64_t step, Executor& executor) override { look(step, executor); }
  void at_end(int64_t step, Executor& executor) override {
    look(step, executor);
    const std::lock_guard lock(mutex_);
    add_state(program_, executor, false, *times_.end);
  }

 private:
  void look(int64_t step, Executor& executor) {
    if (options_.at_step) options_.at_step(program_, step, executor);
    const std::lock_guard lock(mutex_);
    if (step == options_.from.step) add_state(program_, executor, true, *times_.start);
    if (step == options_.from.step + 1) add_gradients(program_, executor, *times_.gradients);
  }

  const Program& program_;
  const ThreadRunOptions& options_;
  const TimesOfRank times_;
  std::mutex& mutex_;
};

void throw_own_error(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr waited;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const CommError&) {
      if (!waited) waited = error;
    }
  }
  if (waited) std::rethrow_exception(waited);
}

bool is_guard_intact(std::span<const std::byte> guard) {
  return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == kGuard; });
}

/// The ranks of one run as threads, and what they share.
class RankThreads {
 public:
  RankThreads(const PlannedJob& job, const std::vector<Program>& programs, const ThreadRunOptions& options)
      : job_(job), programs_(programs), options_(options), ranks_(programs.size()) {
    std::vector<int64_t> arena_bytes;
    for (const Program& program : programs) arena_bytes.push_back(program.arena_bytes + kGuardBytes);
    memory_ = SharedMemory::create(arena_bytes, routes_of(programs));
    run_.calls.resize(ranks_.size());
    run_.arena_bytes.resize(ranks_.size());
  }

  ThreadRun run() {
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks_.size(); ++r)
      threads.emplace_back([this, r] {
        try {
          train(r);
        } catch (...) {
          ranks_[r].error = std::current_exception();
        }
      });
    for (std::thread& thread : threads) thread.join();
    std::vector<std::exception_ptr> errors;
    for (const Rank& rank : ranks_) errors.push_back(rank.error);
    throw_own_error(errors);
    compare_ranks();
    run_.start = values_of(std::move(start_), "before the first step", run_.faults);
    run_.first_gradients = values_of(std::move(gradients_), "after the first step", run_.faults);
    run_.end = values_of(std::move(end_), "after the last step", run_.faults);
    return std::move(run_);
  }

 private:
  /// Executors and communicators live until every rank has ended, since ranks read each other's arenas.
  struct Rank {
    std::vector<RecordedCall> calls;  ///< calls of the current step
    std::unique_ptr<Communicator> comm;
    std::unique_ptr<StateReader> reader;
    std::unique_ptr<Trainer> trainer;
    std::vector<float> losses;
    std::map<std::string, std::vector<double>> metrics;
    bool calls_repeat = true;  ///< every step has the calls of the first one
    std::exception_ptr error;
  };

  void train(size_t r) {
    Rank& rank = ranks_[r];
    rank.comm = make_recorded_communicator(
        make_shared_memory_communicator(memory_, static_cast<int>(r), options_.timeout_seconds), rank.calls,
        run_.arena_bytes[r]);
    rank.reader =
        std::make_unique<StateReader>(programs_[r], options_, TimesOfRank{&start_, &gradients_, &end_}, mutex_);
    TrainObservers observers;
    observers.add(*rank.reader);
    const std::span<std::byte> whole = memory_->arena(static_cast<int>(r));
    const auto bytes = static_cast<size_t>(programs_[r].arena_bytes);
    std::fill(whole.begin() + static_cast<ptrdiff_t>(bytes), whole.end(), kGuard);
    TrainOptions training{.arena = whole.first(bytes)};
    training.executor.threads = options_.threads;
    training.from = options_.from;
    if (options_.restore)
      training.restore = [this, r](Executor& executor) { options_.restore(programs_[r], executor); };
    rank.trainer = std::make_unique<Trainer>(job_, programs_[r], *rank.comm, observers, training);
    rank.calls.clear();
    while (const std::optional<StepReport> report = rank.trainer->run_step()) {
      rank.losses.push_back(report->loss);
      for (size_t i = 0; i < report->metrics.of.size(); ++i)
        if (report->metrics.of[i].of_labels)
          rank.metrics[report->metrics.of[i].name].push_back(report->metrics.values[i]);
      if (rank.losses.size() == 1)
        run_.calls[r] = rank.calls;
      else if (rank.calls != run_.calls[r])
        rank.calls_repeat = false;
      rank.calls.clear();
    }
  }

  /// Reports ranks whose losses differ from those of rank 0, and ranks that wrote outside of their arenas.
  void compare_ranks() {
    run_.losses = ranks_[0].losses;
    run_.metrics = ranks_[0].metrics;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const std::vector<float>&losses = ranks_[r].losses, &first = ranks_[0].losses;
      run_.calls_repeat.push_back(ranks_[r].calls_repeat);
      if (losses.size() != first.size() || std::memcmp(losses.data(), first.data(), first.size() * sizeof(float)) != 0)
        run_.faults.push_back("rank " + std::to_string(r) + " has losses that differ from those of rank 0");
      if (ranks_[r].metrics != run_.metrics)
        run_.faults.push_back("rank " + std::to_string(r) + " has metrics that differ from those of rank 0");
      const std::span<const std::byte> whole = memory_->arena(static_cast<int>(r));
      if (!is_guard_intact(whole.subspan(static_cast<size_t>(programs_[r].arena_bytes)).first(kGuardBytes)))
        run_.faults.push_back("rank " + std::to_string(r) + " wrote past the end of its arena");
    }
  }

  const PlannedJob& job_;
  const std::vector<Program>& programs_;
  const ThreadRunOptions& options_;
  std::shared_ptr<SharedMemory> memory_;
  ThreadRun run_;
  std::mutex mutex_;  ///< for the tensors below, to which all ranks add
  GatheredTensors start_, gradients_, end_;
  std::vector<Rank> ranks_;
};

}  // namespace

ThreadRun run_on_threads(const PlannedJob& job, const std::vector<Program>& programs, const ThreadRunOptions& options) {
  return RankThreads(job, programs, options).run();
}

}  // namespace trainctl
