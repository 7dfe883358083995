// Trains a rank of a network, or runs a parameter server, and saves what the job saves.
#include <algorithm>
#include <utility>

#include "cli/commands/worker/rank_process.h"
#include "cli/run/saves/saver.h"
#include "cli/run/saves/start_weights.h"
#include "cli/run/saves/state_snapshots.h"
#include "cli/run/worker/fault.h"
#include "cli/run/worker/server_output.h"
#include "engine/plan/served.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/plan_generation.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/cuda/devices.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/checkpoint/resume_position.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/files/input_file.h"
#include "engine/train/servers/client.h"
#include "engine/train/servers/server.h"
#include "engine/train/servers/table_image.h"
#include "engine/train/servers/worker.h"
#include "engine/train/trainer/expert_loads.h"
#include "engine/train/trainer/tensor_fingerprints.h"
#include "engine/train/trainer/tensor_histograms.h"

namespace trainctl {
namespace {

/// The visible GPUs: the rank's own first (visible_gpus).
std::vector<AuditCard> audit_cards(const CudaExecutorOptions& own) {
  std::vector<AuditCard> cards;
  for (const CudaDevice& device : find_cuda_devices().list) {
    CudaExecutorOptions cuda = own;
    cuda.device = static_cast<int>(cards.size());
    cuda.gpu = device.index;
    cards.push_back({device.index, [cuda](const Program& program, Communicator& comm, const ExecutorOptions& options) {
                       return make_cuda_executor(program, comm, options, cuda);
                     }});
  }
  return cards;
}

}  // namespace

void RankProcess::train() {
  // The launcher of another host has another clock, so the phases begin here.
  StartUpClock start_up = options_.start_up.empty() ? StartUpClock() : StartUpClock::of_text(options_.start_up);
  start_up.ended("launch");
  begin_gpu();
  const std::optional<Fault> fault = Fault::of_environment(options_.rank);
  if (fault) fault->strike(0);
  memory_ = SharedMemory::attach(options_.memory_fd);
  RankStatus& status = memory_->status(options_.rank);
  status.state = RankState::loading;
  plan();
  compile_programs();
  start_up.ended("program");

  Rendezvous rendezvous(job_->spec, memory_, options_.rank, hosts());
  start_up.ended_together("connect");
  if (program_->server >= 0 && serves_by_event(job_->plan)) return serve(rendezvous.communicator(), start_up);
  RankOutput output(*job_, *program_, status, directory_, output_options());
  const std::optional<Texts> texts = plan_texts();
  std::optional<ValidationTexts> validation_texts;
  RankProfileFile profile(*program_, options_.profile, job_->spec.name, directory_);
  TrainOptions train_options = options_of_training(start_up);
  output.connect(train_options.executor);
  if (texts) make_validation_texts(*texts, rendezvous.communicator(), train_options, validation_texts);
  train_options.executor.timeline = profile.timeline();
  if (fault) train_options.executor.left_out = fault->left_out(*program_);
  status.state = RankState::training;
  const std::optional<EmulatedSpeed> speed =
      program_->server < 0 ? EmulatedSpeed::of_environment(options_.rank) : std::nullopt;
  const double samples = samples_per_step();
  train_options.may_start = [&](int64_t step) {  // `step` counts from 0, faults and the gate from 1
    if (fault) fault->strike(step + 1);
    if (speed) speed->step(samples);
    return memory_->gate().start(static_cast<uint64_t>(step) + 1);
  };
  std::optional<PieceReader> reader;
  if (!options_.resume.empty()) {
    reader.emplace(read_manifest_of_pieces(options_.resume), options_.resume);
    train_options.from = position_after(*job_, reader->manifest(), options_.resume);
    output.starts_at(train_options.from.step);
    train_options.restore = [&](Executor& executor) {
      load_checkpoint(*job_, *program_, *reader, executor, WeightsRead::latest, progress());
    };
  } else if (job_->spec.weights) {
    train_options.restore = [&](Executor& executor) { load_start(*job_, *program_, executor, progress()); };
  }
  train_with(train_options, output, profile, rendezvous);
  profile.ended();
  status.state = RankState::done;
}

/// Compiles the rank's program, and those that run beside it.
void RankProcess::compile_programs() {
  program_ = compile(*job_, options_.rank);
  if (job_->validation) beside_ = compile_validation(*job_, options_.rank);
  if (validates_averages(*job_)) exchange_ = compile_exchange(*job_, options_.rank);
  if (job_->plan.has_replicas()) synchronization_ = compile_synchronization(*job_, options_.rank);
}

/// This rank's part of the samples of a step.
double RankProcess::samples_per_step() const {
  const int workers_of_step = job_->plan.is_asynchronous() ? 1 : job_->spec.launch.ranks;
  const std::vector<int>& own = job_->plan.rank_micro_batches;
  return static_cast<double>(job_->spec.dataset.batch) *
         (own.empty() ? 1.0 / workers_of_step
                      : static_cast<double>(own.at(static_cast<size_t>(options_.rank))) / job_->plan.micro_batches);
}

void RankProcess::serve(Communicator& comm, const StartUpClock& start_up) {
  RankStatus& status = memory_->status(options_.rank);
  ServerOutput output(*job_, *program_, status, directory_);
  ServerOptions server_options;
  server_options.threads = kernel_threads();
  server_options.arena = memory_->arena(options_.rank);
  server_options.start_up = start_up;
  std::optional<PieceReader> reader;
  if (!options_.resume.empty()) {
    reader.emplace(read_manifest_of_pieces(options_.resume), options_.resume);
    server_options.from = position_after(*job_, reader->manifest(), options_.resume);
    server_options.restore = [&](Executor& executor) {
      load_checkpoint(*job_, *program_, *reader, executor, WeightsRead::latest, progress());
    };
    server_options.restore_table = [&](servers::TableRows& rows) {
      servers::restore_rows(*reader, program_->server, job_->plan.servers, rows);
    };
  } else if (job_->spec.weights) {
    server_options.restore = [&](Executor& executor) { load_start(*job_, *program_, executor, progress()); };
  }
  std::optional<Saver> saver;
  std::optional<servers::TableImage> tables;
  if (options_.tables_fd >= 0) tables.emplace(options_.tables_fd, program_->server, !job_->spec.train.saves_state());
  if (options_.image_fd >= 0)
    saver.emplace(*job_, *program_, *memory_, options_.image_fd, server_options.from, options_.failures);
  AsyncServer server(*job_, *program_, *memory_, comm, output, saver ? &*saver : nullptr, server_options);
  if (saver && job_->spec.train.saves_state()) saver->prepare(server.executor());
  if (saver && tables) saver->copies_too([&](bool follows_save) { tables->write(server.tables(), follows_save); });
  status.state = RankState::training;
  server.run();
  output.ended(server);
  status.state = RankState::done;
}

std::optional<RankProcess::Texts> RankProcess::plan_texts() const {
  if (!job_->spec.validation || !job_->spec.validation->generate) return std::nullopt;
  Texts texts;
  texts.request = GenerationRequest::of_json(read_whole_file(directory_.file(kGenerationRequestName)));
  texts.job = plan_generation(job_->spec, texts.request.size);
  texts.decode = compile(texts.job, options_.rank);
  texts.prefill = compile_prefill(texts.job, options_.rank);
  return texts;
}

void RankProcess::make_validation_texts(const Texts& texts, Communicator& comm, TrainOptions& training,
                                        std::optional<ValidationTexts>& made) {
  std::span<std::byte> arena;
  if (options_.gpu < 0) {
    const auto bytes = static_cast<size_t>(std::max(texts.decode.arena_bytes, texts.prefill.arena_bytes));
    const size_t first = training.arena.size() - (bytes + 63) / 64 * 64;
    arena = training.arena.subspan(first);
    training.arena = training.arena.first(first);
  }
  ExecutorOptions options;
  options.threads = kernel_threads();
  options.on_prepared = training.executor.on_prepared;
  made.emplace(
      *job_, *program_, texts.job, texts.request, texts.decode, texts.prefill, comm, options,
      [&, arena](const Program& program, const ExecutorOptions& of_executor) {
        return make_executor(program, comm, of_executor, arena);
      },
      options_.weights_fd);
  training.generate_texts = [&made](int64_t steps, Executor& executor) { return made->write(steps, executor); };
}

RankOutputOptions RankProcess::output_options() const {
  const std::vector<int> ranks_of_hosts = parse_layout(options_.layout);
  RankOutputOptions output{.record = options_.record};
  const bool is_restarted = memory_->batches().lives(options_.rank % BatchBoard::kMostWorkers) > 0;
  if (ranks_of_hosts.empty() || is_restarted) output.metrics = RecordFile::Begin::append;
  output.has_hosts = !ranks_of_hosts.empty();
  output.is_apart = !ranks_of_hosts.empty() && options_.rank >= ranks_of_hosts[0];
  output.copies_metrics = output.is_apart && options_.rank == ranks_of_hosts[0] && !job_->plan.is_asynchronous();
  if (job_->plan.is_asynchronous())
    output.takes_over = [this] {
      for (int worker = 0; worker < options_.rank; ++worker)
        if (!memory_->batches().is_gone(worker)) return false;
      return true;
    };
  return output;
}

TrainOptions RankProcess::options_of_training(const StartUpClock& start_up) {
  TrainOptions options;
  options.executor.threads = kernel_threads();
  options.arena = memory_->arena(options_.rank);
  options.shared_cache = options_.cache_fd;
  if (options_.gpu >= 0) {
    options.cuda.emplace();
    options.cuda->gpu = options_.gpu;
    options.cuda->timeout_seconds = job_->spec.launch.timeout_seconds;
  }
  options.start_up = start_up;
  if (beside_) options.validation = &*beside_;
  if (exchange_) options.averages = &*exchange_;
  if (synchronization_) options.synchronization = &*synchronization_;
  options.on_hang = [this](const EnvError& error) { end_now(error); };
  return options;
}

AuditOptions RankProcess::options_of_audits(const TrainOptions& training) const {
  AuditOptions audits{.every = job_->spec.train.audit_every};
  audits.executor.seed = job_->spec.seed;
  audits.executor.threads = training.executor.threads;
  audits.save = [this](const AuditMismatch& mismatch, const AuditedValues& first, const AuditedValues& replayed) {
    return save_audit(directory_.path(), options_.rank, mismatch, first, replayed);
  };
  if (const auto fault = Fault::of_environment(options_.rank)) audits.corrupt = fault->corruption(*program_);
  if (training.cuda) audits.cards = audit_cards(*training.cuda);
  return audits;
}

void RankProcess::train_with(TrainOptions& options, RankOutput& output, RankProfileFile& profile,
                             Rendezvous& rendezvous) {
  TrainObservers observers;
  std::optional<StepAudit> audit;
  if (job_->spec.train.audit_every > 0) {
    // Added first, so that a run that ends with a fault does not save its results.
    observers.add(audit.emplace(*program_, rendezvous.communicator(), options_of_audits(options)));
    options.audit = &*audit;
  }
  std::optional<Saver> saver;
  if (options_.image_fd >= 0 && !job_->plan.is_asynchronous())
    observers.add(saver.emplace(*job_, *program_, *memory_, options_.image_fd, options.from, options_.failures));
  std::optional<SnapshotWriter> snapshots;
  if (options_.snapshot_fd >= 0) observers.add(snapshots.emplace(*program_, options_.snapshot_fd, options.from));
  std::optional<TensorHistograms> histograms;
  if (job_->spec.train.histograms > 0)
    observers.add(histograms.emplace(
        *program_, rendezvous.communicator(), job_->spec.train.histograms, options.from.step,
        [&output](int64_t step, const auto& of_tensors) { output.write_histograms(step, of_tensors); }));
  std::optional<TensorFingerprints> fingerprints;
  if (job_->spec.train.fingerprints > 0)
    observers.add(fingerprints.emplace(
        *program_, rendezvous.communicator(), job_->spec.train.fingerprints, options.from.step,
        [&output](int64_t step, const Fingerprints& prints) { output.write_fingerprints(step, prints); }));
  std::optional<ExpertLoads> expert_loads;
  const int workers = num_workers(job_->plan);
  if (reports_expert_loads(*job_) && program_->rank < workers)
    observers.add(expert_loads.emplace(
        *program_, rendezvous.communicator(), workers, steps_between_expert_loads(job_->spec.train), options.from.step,
        [&output](int64_t step, const LoadsOfLayers& loads) { output.write_expert_loads(step, loads); }));
  observers.add(output);
  observers.add(profile);
  if (job_->plan.is_asynchronous()) {
    AsyncWorker worker(*job_, *program_, *memory_, rendezvous.communicator(), observers, options);
    output.ended(worker.run());
    output.write_workers(memory_->batches());
    return;
  }
  std::optional<servers::Client> tables;
  if (serves_tables_alone(job_->plan))
    options.exchange = &tables.emplace(*job_, *program_, options.validation, options.arena, rendezvous.communicator());
  const TrainResult result =
      trainctl::train(*job_, *program_, audit ? audit->communicator() : rendezvous.communicator(), observers, options);
  if (tables) tables->close();
  if (const auto traffic = rendezvous.traffic()) output.write_traffic(*traffic, result.steps);
  if (audit) output.write_audits(audit->audited_steps(), audit->overhead());
  if (const auto bytes = rendezvous.token_bytes()) output.write_token_bytes(*bytes, result.steps);
  output.ended(result);
}

}  // namespace trainctl
