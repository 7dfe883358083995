// Runs a rank of `trainctl evaluate`, `predict` and `generate`, which train nothing.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/commands/worker/rank_process.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/plan_generation.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/files/input_file.h"
#include "engine/train/trainer/evaluator.h"
#include "engine/train/trainer/generator.h"
#include "engine/train/trainer/prediction.h"

namespace trainctl {

void RankProcess::evaluate() {
  begin_gpu();
  memory_ = SharedMemory::attach(options_.memory_fd);
  RankStatus& status = memory_->status(options_.rank);
  status.state = RankState::loading;
  plan();
  if (!options_.predict.empty()) predict_layer(*job_, options_.predict, options_.with_loss);
  program_ = compile_validation(*job_, options_.rank, false);
  std::optional<PredictionFile> file;
  if (!options_.predict.empty()) file.emplace(*job_, *program_, options_.output);
  int64_t batch = 0;
  Rendezvous rendezvous(job_->spec, memory_, options_.rank, hosts());
  ExecutorOptions executor_options;
  executor_options.seed = job_->spec.seed;
  executor_options.threads = kernel_threads();
  executor_options.in_flight = 1;
  executor_options.on_prepared = [&status] { status.looks.fetch_add(1, std::memory_order_relaxed); };
  if (file)
    executor_options.print = [&](const Operand& operand, const void* data, int micro_batch) {
      file->write(batch, operand, data, micro_batch);
    };
  std::unique_ptr<Dataset> set = open_validation_set(*job_);
  if (options_.gpu >= 0) executor_options.byte_tables = byte_tables(*set, *program_);
  std::unique_ptr<Executor> executor = make_executor(*program_, rendezvous.communicator(), executor_options);
  const int64_t step = load_state(*executor);
  status.state = RankState::training;
  Evaluator evaluator(*job_, *job_->validation, *program_, std::move(set), std::move(executor),
                      [this](const EnvError& error) { end_now(error); });
  const ValidationReport report = evaluator.run(step, [&](int64_t done, int64_t all) {
    batch = done;
    status.validated_batches = static_cast<uint32_t>(done);
    status.validation_batches = done < all ? static_cast<uint32_t>(all) : 0;
  });
  if (options_.rank == 0 && (!file || options_.with_loss))
    write_evaluation(directory_, options_.resume.empty() ? job_->spec.weights->from : options_.resume, report);
  status.state = RankState::done;
}

void RankProcess::generate() {
  begin_gpu();
  memory_ = SharedMemory::attach(options_.memory_fd);
  RankStatus& status = memory_->status(options_.rank);
  status.state = RankState::loading;
  const GenerationRequest request =
      GenerationRequest::of_json(read_whole_file(directory_.file(kGenerationRequestName)));
  plan_with([&](JobSpec spec) { return plan_generation(std::move(spec), request.size); });
  program_ = compile(*job_, options_.rank);
  beside_ = compile_prefill(*job_, options_.rank);
  Rendezvous rendezvous(job_->spec, memory_, options_.rank, hosts());
  ExecutorOptions executor_options;
  executor_options.threads = kernel_threads();
  executor_options.on_prepared = [&status] { status.looks.fetch_add(1, std::memory_order_relaxed); };
  TokenSteps steps(*job_, *program_, *beside_, rendezvous.communicator(), executor_options,
                   [&](const Program& program, const ExecutorOptions& options) {
                     return make_executor(program, rendezvous.communicator(), options);
                   });
  load_state(steps.executor());
  status.state = RankState::training;
  if (options_.rank > 0)
    steps.follow();
  else
    trainctl::generate(request, steps, [this](std::string_view text) { write_text(text); });
  status.state = RankState::done;
}

void RankProcess::write_text(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = ::write(options_.generate_fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw EnvError(std::string("the text cannot be written: ") + std::strerror(errno));
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace trainctl
