// The parts of a rank's process that training, evaluation and generation share: its plan, its executors and the report
// of its failure.
#include "cli/commands/worker/rank_process.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "cli/errors.h"
#include "cli/run/saves/start_weights.h"
#include "cli/run/worker/rank_failure.h"
#include "cli/run/worker/take_gpu.h"
#include "engine/planning/plan_job.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/executor.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/finite_state.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/data/read_and_plan.h"

namespace trainctl {
namespace {

/// Call it in a catch block. The loss is the same on all ranks, so only one of them writes it.
int report(bool is_first) {
  try {
    throw;
  } catch (const LossNotFinite& error) {
    if (is_first) std::cerr << error.what() << "\n";
    return kExitRankFailed;
  } catch (const StateNotFinite& error) {
    std::cerr << error.what() << "\n";
    return kExitRankFailed;
  } catch (...) {
    return report_current_exception();
  }
}

}  // namespace

int kernel_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

void RankProcess::end_failed() const {
  write_failure();
  // Each asynchronous worker and each replica has a separate loss.
  const bool has_own_loss =
      job_ && (job_->plan.is_asynchronous() || (job_->plan.has_replicas() && options_.rank % job_->plan.ranks == 0));
  const int code = report(options_.rank == 0 || has_own_loss);
  std::fflush(nullptr);
  std::_Exit(code);
}

std::unique_ptr<Executor> RankProcess::make_executor(const Program& program, Communicator& comm,
                                                     const ExecutorOptions& options) {
  return make_executor(program, comm, options, memory_->arena(options_.rank));
}

std::unique_ptr<Executor> RankProcess::make_executor(const Program& program, Communicator& comm,
                                                     const ExecutorOptions& options, std::span<std::byte> arena) {
  if (options_.gpu < 0) return make_cpu_executor(program, comm, options, arena);
  CudaExecutorOptions cuda;
  cuda.gpu = options_.gpu;
  cuda.timeout_seconds = job_->spec.launch.timeout_seconds;
  return make_cuda_executor(program, comm, options, cuda);
}

std::function<void()> RankProcess::progress() {
  return [&status = memory_->status(options_.rank)] { status.looks.fetch_add(1, std::memory_order_relaxed); };
}

int64_t RankProcess::load_state(Executor& executor) {
  if (options_.resume.empty()) {
    load_start(*job_, *program_, executor, progress());
    return 0;
  }
  PieceReader reader(read_manifest_of_pieces(options_.resume), options_.resume);
  load_checkpoint(*job_, *program_, reader, executor, WeightsRead::averages, progress());
  return reader.manifest().step;
}

void RankProcess::begin_gpu() {
  if (options_.take_gpu >= 0) options_.gpu = take_gpu(options_.take_gpu, options_.audits);
  if (options_.gpu >= 0) begin_cuda(CudaExecutorOptions{}.device);
}

void RankProcess::plan() {
  plan_with([](JobSpec spec) { return plan_job(std::move(spec)); });
}

void RankProcess::plan_with(const std::function<PlannedJob(JobSpec)>& plan_spec) {
  JobSpec spec = load_job(directory_.file("job.yaml"));
  watch_.emplace(spec.launch.timeout_seconds, [this](const EnvError& error) { end_now(error); });
  job_ = plan_spec(std::move(spec));
}

HostsLayout RankProcess::hosts() const {
  HostsLayout hosts = options_.hosts;
  hosts.ranks = parse_layout(options_.layout);
  return hosts;
}

void RankProcess::end_now(const EnvError& error) const {
  try {
    throw error;
  } catch (...) {
    end_failed();
  }
}

void RankProcess::write_failure() const {
  const RankStatus* status = memory_ ? &memory_->status(options_.rank) : nullptr;
  write_rank_error(directory_.rank_path(options_.rank), current_rank_error(status, program_ ? &*program_ : nullptr));
}

}  // namespace trainctl
