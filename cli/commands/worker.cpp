// trainctl worker: runs one rank. Started by `trainctl run`, never by hand.
#include "engine/train/servers/worker.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cli/commands/commands.h"
#include "cli/errors.h"
#include "cli/run/saves/saver.h"
#include "cli/run/saves/start_weights.h"
#include "cli/run/saves/state_snapshots.h"
#include "cli/run/worker/crash.h"
#include "cli/run/worker/fault.h"
#include "cli/run/worker/rank_failure.h"
#include "cli/run/worker/rank_output.h"
#include "cli/run/worker/rank_profile.h"
#include "cli/run/worker/rendezvous.h"
#include "cli/run/worker/server_output.h"
#include "cli/run/worker/take_gpu.h"
#include "engine/base/file_wait.h"
#include "engine/plan/served.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/plan_generation.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/finite_state.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/checkpoint/resume_position.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/files/input_file.h"
#include "engine/train/servers/client.h"
#include "engine/train/servers/server.h"
#include "engine/train/servers/table_image.h"
#include "engine/train/trainer/evaluator.h"
#include "engine/train/trainer/expert_loads.h"
#include "engine/train/trainer/generator.h"
#include "engine/train/trainer/prediction.h"
#include "engine/train/trainer/step_audit.h"
#include "engine/train/trainer/tensor_fingerprints.h"
#include "engine/train/trainer/tensor_histograms.h"
#include "engine/train/trainer/trainer.h"
#include "engine/train/trainer/validation_texts.h"
#include "launcher/run_directory.h"

namespace trainctl {
namespace {

struct WorkerArguments {
  std::string log_dir;
  int run = 0;
  int rank = 0;
  int memory_fd = -1;
  HostsLayout hosts;
  std::string layout;   ///< the ranks of each host; empty: one host
  int gpu = -1;         ///< host-wide number of the only GPU visible to this process; -1: runs on CPUs
  int take_gpu = -1;    ///< index of the visible GPU to use; -1: the launcher has chosen
  bool audits = false;  ///< with take_gpu: other GPUs replay steps of this one
  bool record = false;
  std::string profile;          ///< steps, "3-5"; empty: none
  int image_fd = -1;            ///< memory for this rank's part of checkpoints; -1: the job saves none
  int snapshot_fd = -1;         ///< memory for this rank's whole state before each step; -1: no copy is kept
  int tables_fd = -1;           ///< same as image_fd for the rows of a server's tables
  int cache_fd = -1;            ///< sample cache shared by the ranks of this host; -1: none
  int weights_fd = -1;          ///< memory that passes weights from ranks to text generation; -1: not used
  int failures = 0;             ///< number of failures of the run before this attempt
  std::string resume;           ///< the checkpoint to resume from; empty: none
  int generate_fd = -1;         ///< writes generated texts there; -1: generates none
  bool evaluate = false;        ///< evaluates the validation set with the weights of `resume`, or of the job
  std::string predict, output;  ///< the layer whose output is written there; empty: loss and metrics
  bool with_loss = false;       ///< with `predict`: loss and metrics too
  std::string start_up;         ///< the launcher's StartUpClock, serialized
};

int kernel_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

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

/// The objects of a rank. They outlive the training, so that a failure report can use them.
class Worker {
 public:
  explicit Worker(const WorkerArguments& options) : options_(options), directory_(options.log_dir, options.run) {}

  void train_rank() {
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
    program_ = compile(*job_, options_.rank);
    if (job_->validation) beside_ = compile_validation(*job_, options_.rank);
    if (validates_averages(*job_)) exchange_ = compile_exchange(*job_, options_.rank);
    if (job_->plan.has_replicas()) synchronization_ = compile_synchronization(*job_, options_.rank);
    start_up.ended("program");

    Rendezvous rendezvous(job_->spec, memory_, options_.rank, hosts());
    start_up.met_others("connect");
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
    const int workers_of_step = job_->plan.is_asynchronous() ? 1 : job_->spec.launch.ranks;
    const std::vector<int>& own = job_->plan.rank_micro_batches;
    const double samples =
        static_cast<double>(job_->spec.dataset.batch) *
        (own.empty() ? 1.0 / workers_of_step
                     : static_cast<double>(own.at(static_cast<size_t>(options_.rank))) / job_->plan.micro_batches);
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

  /// Runs a server as an event loop.
  void serve(Communicator& comm, const StartUpClock& start_up) {
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

  void evaluate() {
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

  void generate() {
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

  /// Call it in a catch block. Runs no destructors: threads may hang, or threads of libraries may still be aborting
  /// their calls.
  [[noreturn]] void end_failed() const {
    write_failure();
    // Each asynchronous worker and each replica has a separate loss.
    const bool has_own_loss =
        job_ && (job_->plan.is_asynchronous() || (job_->plan.has_replicas() && options_.rank % job_->plan.ranks == 0));
    const int code = report(options_.rank == 0 || has_own_loss);
    std::fflush(nullptr);
    std::_Exit(code);
  }

 private:
  /// validation.generate: its plan and the programs of this rank.
  struct Texts {
    GenerationRequest request;
    PlannedJob job;
    Program decode, prefill;
  };

  std::optional<Texts> plan_texts() const {
    if (!job_->spec.validation || !job_->spec.validation->generate) return std::nullopt;
    Texts texts;
    texts.request = GenerationRequest::of_json(read_whole_file(directory_.file(kGenerationRequestName)));
    texts.job = plan_generation(job_->spec, texts.request.size);
    texts.decode = compile(texts.job, options_.rank);
    texts.prefill = compile_prefill(texts.job, options_.rank);
    return texts;
  }

  /// The arena of the texts follows that of the training.
  void make_validation_texts(const Texts& texts, Communicator& comm, TrainOptions& training,
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

  void write_text(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t written = ::write(options_.generate_fd, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw EnvError(std::string("the text cannot be written: ") + std::strerror(errno));
      text.remove_prefix(static_cast<size_t>(written));
    }
  }

  std::unique_ptr<Executor> make_executor(const Program& program, Communicator& comm, const ExecutorOptions& options) {
    return make_executor(program, comm, options, memory_->arena(options_.rank));
  }

  std::unique_ptr<Executor> make_executor(const Program& program, Communicator& comm, const ExecutorOptions& options,
                                          std::span<std::byte> arena) {
    if (options_.gpu < 0) return make_cpu_executor(program, comm, options, arena);
    CudaExecutorOptions cuda;
    cuda.gpu = options_.gpu;
    cuda.timeout_seconds = job_->spec.launch.timeout_seconds;
    return make_cuda_executor(program, comm, options, cuda);
  }

  /// Shows the launcher that loading continues: launch.timeout limits the time without such a sign.
  std::function<void()> progress() {
    return [&status = memory_->status(options_.rank)] { status.looks.fetch_add(1, std::memory_order_relaxed); };
  }

  /// Loads the weights of the checkpoint or those that the job starts from. Returns the steps after which they were
  /// saved.
  int64_t load_state(Executor& executor) {
    if (options_.resume.empty()) {
      load_start(*job_, *program_, executor, progress());
      return 0;
    }
    PieceReader reader(read_manifest_of_pieces(options_.resume), options_.resume);
    load_checkpoint(*job_, *program_, reader, executor, WeightsRead::averages, progress());
    return reader.manifest().step;
  }

  void begin_gpu() {
    if (options_.take_gpu >= 0) options_.gpu = take_gpu(options_.take_gpu, options_.audits);
    if (options_.gpu >= 0) begin_cuda(CudaExecutorOptions{}.device);
  }

  /// From here on, a file system that stops responding ends the rank.
  void plan() {
    plan_with([](JobSpec spec) { return plan_job(std::move(spec)); });
  }

  void plan_with(const std::function<PlannedJob(JobSpec)>& plan_spec) {
    JobSpec spec = load_job(directory_.file("job.yaml"));
    watch_.emplace(spec.launch.timeout_seconds, [this](const EnvError& error) { end_now(error); });
    job_ = plan_spec(std::move(spec));
  }

  /// On one host, the launcher keeps only lines that will not be repeated (cli/run/launch/metrics_file.h). On several
  /// hosts, the agent of rank 0's host sends what that rank writes, and the launcher appends it.
  RankOutputOptions output_options() const {
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

  HostsLayout hosts() const {
    HostsLayout hosts = options_.hosts;
    hosts.ranks = parse_layout(options_.layout);
    return hosts;
  }

  TrainOptions options_of_training(const StartUpClock& start_up) {
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

  /// The visible GPUs: the rank's own first (visible_gpus).
  static std::vector<AuditCard> audit_cards(const CudaExecutorOptions& own) {
    std::vector<AuditCard> cards;
    for (const CudaDevice& device : find_cuda_devices().list) {
      CudaExecutorOptions cuda = own;
      cuda.device = static_cast<int>(cards.size());
      cuda.gpu = device.index;
      cards.push_back(
          {device.index, [cuda](const Program& program, Communicator& comm, const ExecutorOptions& options) {
             return make_cuda_executor(program, comm, options, cuda);
           }});
    }
    return cards;
  }

  AuditOptions options_of_audits(const TrainOptions& training) const {
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

  /// Trains, and saves what the job saves. Savers observe a step before it is reported.
  void train_with(TrainOptions& options, RankOutput& output, RankProfileFile& profile, Rendezvous& rendezvous) {
    TrainObservers observers;
    std::optional<StepAudit> audit;
    if (job_->spec.train.audit_every > 0) {
      // First, so that a run that ends with a fault does not save what it has computed.
      AuditOptions audits = options_of_audits(options);
      for (size_t card = 1; card < audits.cards.size(); ++card) options.cuda->alike.push_back(static_cast<int>(card));
      observers.add(audit.emplace(*program_, rendezvous.communicator(), std::move(audits)));
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
    if (reports_expert_loads(*job_))
      observers.add(expert_loads.emplace(
          *program_, rendezvous.communicator(), steps_between_expert_loads(job_->spec.train), options.from.step,
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
      options.exchange =
          &tables.emplace(*job_, *program_, options.validation, options.arena, rendezvous.communicator());
    const TrainResult result =
        train(*job_, *program_, audit ? audit->communicator() : rendezvous.communicator(), observers, options);
    if (tables) tables->leave();
    if (const auto traffic = rendezvous.traffic()) output.write_traffic(*traffic, result.steps);
    if (audit) output.write_audits(audit->audited_steps(), audit->overhead());
    if (const auto bytes = rendezvous.token_bytes()) output.write_token_bytes(*bytes, result.steps);
    output.ended(result);
  }

  [[noreturn]] void end_now(const EnvError& error) const {
    try {
      throw error;
    } catch (...) {
      end_failed();
    }
  }

  /// Call it in a catch block.
  void write_failure() const {
    const RankStatus* status = memory_ ? &memory_->status(options_.rank) : nullptr;
    write_rank_error(directory_.rank_path(options_.rank), current_rank_error(status, program_ ? &*program_ : nullptr));
  }

  WorkerArguments options_;
  const RunDirectory directory_;
  std::shared_ptr<SharedMemory> memory_;
  std::optional<PlannedJob> job_;
  std::optional<Program> program_, beside_;  ///< the programs of beside_: those of the validation or of prompts
  std::optional<Program> exchange_;          ///< exchanges weights and their averages around validations
  std::optional<Program> synchronization_;   ///< updates the weights of all replicas (parallel.local_steps)
  std::optional<FileWatch> watch_;
};

int work(const WorkerArguments& options) {
  report_crashes();
  std::signal(SIGPIPE, SIG_IGN);  // a lost peer then causes an error that names it
  Worker worker(options);
  try {
    if (options.generate_fd >= 0)
      worker.generate();
    else
      options.evaluate ? worker.evaluate() : worker.train_rank();
    return kExitDone;
  } catch (...) {
    worker.end_failed();
  }
}

}  // namespace

void add_worker_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<WorkerArguments>();
  auto* command = app.add_subcommand("worker", "Run one rank; started by trainctl run");
  command->group("");  // hidden
  command->add_option("log_dir", options->log_dir)->required();
  command->add_option("run", options->run)->required();
  command->add_option("--rank", options->rank)->required();
  command->add_option("--memory-fd", options->memory_fd)->required();
  command->add_option("--hosts", options->layout);
  command->add_option("--address", options->hosts.address);
  command->add_option("--gpu", options->gpu);
  command->add_option("--take-gpu", options->take_gpu);
  command->add_flag("--audits", options->audits);
  command->add_flag("--record", options->record);
  command->add_option("--profile", options->profile);
  command->add_option("--image-fd", options->image_fd);
  command->add_option("--snapshot-fd", options->snapshot_fd);
  command->add_option("--tables-fd", options->tables_fd);
  command->add_option("--cache-fd", options->cache_fd);
  command->add_option("--weights-fd", options->weights_fd);
  command->add_option("--failures", options->failures);
  command->add_option("--resume-from", options->resume);
  command->add_option("--generate", options->generate_fd);
  command->add_flag("--evaluate", options->evaluate);
  command->add_option("--predict", options->predict);
  command->add_option("--output", options->output);
  command->add_flag("--with-loss", options->with_loss);
  command->add_option("--start-up", options->start_up);
  command->callback([&chosen, options] { chosen = [options] { return work(*options); }; });
}

}  // namespace trainctl
