// Runs a job on all its ranks as threads of one process, and keeps all results that can be compared.
#include "tests/equivalence/harness.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/initial_weights.h"
#include "engine/runtime/parts.h"
#include "engine/runtime/routes.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/trainer/trainer.h"
#include "tests/equivalence/recording_communicator.h"
#include "tests/jobs/jobs.h"
#include "tests/train/function_observer.h"

namespace trainctl {
namespace {

constexpr double kTimeoutSeconds = 30;

struct Rank {
  std::unique_ptr<RecordingCommunicator> comm;
  std::unique_ptr<Trainer> trainer;
  std::vector<float> losses;
  std::map<std::string, std::vector<double>> metrics;
  std::vector<ValidationReport> validations;
  std::vector<std::string> first_calls, printed;
  int calls_per_step = 0;
};

std::string printed_text(const Operand& operand, const void* data) {
  std::string text = operand.tensor + " " + to_string(operand.shape);
  for (int64_t i = 0; i < num_elements(operand.shape); ++i) {
    text += " " + std::to_string(static_cast<const float*>(data)[i]);
  }
  return text;
}

CudaExecutorOptions cuda_options(int rank, const RunOn& on) {
  CudaExecutorOptions cuda;
  cuda.device = rank;
  cuda.graph = on.graph;
  cuda.timeout_seconds = kTimeoutSeconds;
  cuda.notice = [&on](const std::string& line) {
    if (on.notices == nullptr) throw std::runtime_error(line);
    on.notices->push_back(line);
  };
  return cuda;
}

void run_rank(const PlannedJob& job, const Program& program, const Program* validation, std::span<std::byte> arena,
              Rank& rank, const RunOn& on) {
  FunctionObserver seen;
  seen.validation = [&](const ValidationReport& report) {
    rank.validations.push_back(report);
    rank.comm->calls.clear();
  };
  TrainOptions options{.arena = arena};
  options.executor.print = [&](const Operand& operand, const void* data, int) {
    rank.printed.push_back(printed_text(operand, data));
  };
  if (on.cuda) options.cuda = cuda_options(program.rank, on);
  options.validation = validation;
  options.from = on.from;
  if (on.restore) options.restore = [&](Executor& executor) { on.restore(program, executor); };
  if (on.at_step)
    seen.state = seen.end = [&](int64_t step, Executor& executor) { on.at_step(program, step, executor); };
  if (on.reported) seen.position = [&](const TrainPosition& position) { on.reported(program, position); };
  rank.trainer = std::make_unique<Trainer>(job, program, *rank.comm, seen.alone(), options);
  rank.comm->calls.clear();
  while (const std::optional<StepReport> report = rank.trainer->run_step()) {
    rank.losses.push_back(report->loss);
    for (size_t i = 0; i < report->metrics.of.size(); ++i)
      rank.metrics[report->metrics.of[i].name].push_back(report->metrics.values[i]);
    if (report->run_step == on.from.step + 1) {
      rank.first_calls = rank.comm->calls;
      rank.calls_per_step = static_cast<int>(rank.first_calls.size());
    } else if (rank.comm->calls != rank.first_calls) {
      rank.calls_per_step = -1;
    }
    rank.comm->calls.clear();
  }
}

void throw_first_error(const std::vector<std::exception_ptr>& errors) {
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

/// Adds what a rank has of a variable to the whole; replicas must have the same bits.
void copy_part(const StoredRange& range, const std::vector<float>& values, std::vector<float>& whole,
               std::vector<bool>& known) {
  size_t next = 0;
  for (const Box& box : boxes_of(*range.variable, range.first, range.count)) {
    for_each_run(range.variable->global_shape, box.offset, box.shape, [&](int64_t, int64_t in_whole, int64_t length) {
      for (int64_t i = in_whole; i < in_whole + length; ++i) {
        const auto at = static_cast<size_t>(i);
        const float value = values[next++];
        if (known[at] && std::memcmp(&whole[at], &value, sizeof(value)) != 0)
          throw std::runtime_error("replicas of " + range.variable->name + " differ at element " + std::to_string(at));
        whole[at] = value;
        known[at] = true;
      }
    });
  }
}

}  // namespace

std::map<std::string, std::vector<float>> gather_weights(const std::vector<Program>& programs,
                                                         const std::vector<Executor*>& executors) {
  std::map<std::string, std::vector<float>> weights;
  std::map<std::string, std::vector<bool>> known;
  for (size_t r = 0; r < programs.size(); ++r) {
    for (const StoredRange& range : stored_ranges(programs[r])) {
      if (!has_initial_values(range) || range.dtype != DType::f32) continue;
      const Variable& variable = *range.variable;
      const auto size = static_cast<size_t>(num_elements(variable.global_shape));
      std::vector<float>& whole = weights.try_emplace(variable.name, size).first->second;
      std::vector<bool>& there = known.try_emplace(variable.name, size).first->second;
      std::vector<float> values(static_cast<size_t>(range.count));
      executors[r]->read(range.offset, values.data(), range.bytes());
      copy_part(range, values, whole, there);
    }
  }
  for (const auto& [name, there] : known) {
    if (std::find(there.begin(), there.end(), false) != there.end()) {
      throw std::runtime_error("no rank holds all of " + name);
    }
  }
  return weights;
}

RunResult run_job(const std::string& name, const std::vector<std::string>& overrides, const RunOn& on) {
  return run_job(plan_job(job_spec(name, overrides)), on);
}

void run_ranks(const std::vector<Program>& programs, const RankBody& body, const std::function<void()>& after,
               const std::vector<Program>& beside) {
  std::vector<int64_t> arena_bytes;
  for (const Program& program : programs) arena_bytes.push_back(program.arena_bytes);
  for (size_t r = 0; r < beside.size(); ++r) arena_bytes[r] = std::max(arena_bytes[r], beside[r].arena_bytes);
  std::vector<Route> routes = routes_of(programs);
  for (const Route& route : routes_of(beside)) routes.push_back(route);
  const auto memory = SharedMemory::create(arena_bytes, routes);
  std::vector<std::exception_ptr> errors(programs.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < static_cast<int>(programs.size()); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r, make_shared_memory_communicator(memory, r, kTimeoutSeconds), memory->arena(r));
      } catch (...) {
        errors[static_cast<size_t>(r)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  throw_first_error(errors);
  if (after) after();
}

RunResult run_job(PlannedJob planned, const RunOn& on) {
  RunResult result;
  result.job = std::move(planned);
  result.programs = compile_all(result.job);
  std::vector<Program> validation;
  if (result.job.validation) {
    const RankClasses classes = compile_validation_classes(result.job);
    for (int r = 0; r < classes.num_ranks(); ++r) validation.push_back(compile_validation(result.job, r));
  }
  std::vector<Rank> ranks(result.programs.size());
  const auto body = [&](int r, std::unique_ptr<Communicator> comm, std::span<std::byte> arena) {
    Rank& rank = ranks[static_cast<size_t>(r)];
    rank.comm = std::make_unique<RecordingCommunicator>(std::move(comm));
    const Program* beside = validation.empty() ? nullptr : &validation[static_cast<size_t>(r)];
    run_rank(result.job, result.programs[static_cast<size_t>(r)], beside, arena, rank, on);
  };
  run_ranks(
      result.programs, body,
      [&] {
        std::vector<Executor*> executors;
        for (Rank& rank : ranks) executors.push_back(&rank.trainer->executor());
        result.weights = gather_weights(result.programs, executors);
      },
      validation);
  for (size_t r = 0; r < ranks.size(); ++r) {
    result.calls.push_back(ranks[r].first_calls);
    result.calls_per_step.push_back(ranks[r].calls_per_step);
    result.arena_bytes.push_back(ranks[r].comm->arena_bytes);
    result.printed[static_cast<int>(r)] = ranks[r].printed;
    if (ranks[r].losses != ranks[0].losses) throw std::runtime_error("ranks disagree on the loss");
    for (size_t i = 0; i < ranks[r].validations.size(); ++i)
      if (ranks[r].validations[i].values != ranks[0].validations.at(i).values)
        throw std::runtime_error("ranks disagree on a validation");
    if (ranks[r].metrics != ranks[0].metrics) throw std::runtime_error("ranks disagree on a metric");
  }
  result.losses = ranks[0].losses;
  result.metrics = ranks[0].metrics;
  result.validations = ranks[0].validations;
  return result;
}

}  // namespace trainctl
