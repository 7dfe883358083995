// The process of one rank, which `trainctl worker` runs: trains, serves, evaluates or generates. Its parts are in
// rank_process.cpp (planning, executors, failures), train_rank.cpp and answer.cpp (evaluate, generate).
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run/worker/rank_output.h"
#include "cli/run/worker/rank_profile.h"
#include "cli/run/worker/rendezvous.h"
#include "engine/base/file_wait.h"
#include "engine/base/start_up.h"
#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/executor.h"
#include "engine/train/trainer/generation_request.h"
#include "engine/train/trainer/step_audit.h"
#include "engine/train/trainer/trainer.h"
#include "engine/train/trainer/validation_texts.h"
#include "launcher/run_directory.h"

namespace trainctl {

struct RankArguments {
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

/// Threads of a kernel, as the launcher has set OMP_NUM_THREADS.
int kernel_threads();

/// The objects of a rank. They outlive the training, so that a failure report can use them.
class RankProcess {
 public:
  explicit RankProcess(const RankArguments& options) : options_(options), directory_(options.log_dir, options.run) {}

  void train();
  void evaluate();
  void generate();

  /// Call it in a catch block. Runs no destructors: threads may hang, or threads of libraries may still be aborting
  /// their calls.
  [[noreturn]] void end_failed() const;

 private:
  /// validation.generate: its plan and the programs of this rank.
  struct Texts {
    GenerationRequest request;
    PlannedJob job;
    Program decode, prefill;
  };

  /// Runs a server as an event loop.
  void serve(Communicator& comm, const StartUpClock& start_up);
  std::optional<Texts> plan_texts() const;
  /// The arena of the texts follows that of the training.
  void make_validation_texts(const Texts& texts, Communicator& comm, TrainOptions& training,
                             std::optional<ValidationTexts>& made);
  void write_text(std::string_view text) const;
  std::unique_ptr<Executor> make_executor(const Program& program, Communicator& comm, const ExecutorOptions& options);
  std::unique_ptr<Executor> make_executor(const Program& program, Communicator& comm, const ExecutorOptions& options,
                                          std::span<std::byte> arena);
  /// Shows the launcher that loading continues: launch.timeout limits the time without such a sign.
  std::function<void()> progress();
  /// Loads the weights of the checkpoint or those that the job starts from. Returns the steps after which they were
  /// saved.
  int64_t load_state(Executor& executor);
  void begin_gpu();
  /// From here on, a file system that stops responding ends the rank.
  void plan();
  void compile_programs();
  double samples_per_step() const;
  void plan_with(const std::function<PlannedJob(JobSpec)>& plan_spec);
  /// On one host, the launcher keeps only lines that will not be repeated (cli/run/launch/metrics_file.h). On several
  /// hosts, the agent of rank 0's host sends what that rank writes, and the launcher appends it.
  RankOutputOptions output_options() const;
  HostsLayout hosts() const;
  TrainOptions options_of_training(const StartUpClock& start_up);
  AuditOptions options_of_audits(const TrainOptions& training) const;
  /// Trains, and saves what the job saves. Savers observe a step before it is reported.
  void train_with(TrainOptions& options, RankOutput& output, RankProfileFile& profile, Rendezvous& rendezvous);
  [[noreturn]] void end_now(const EnvError& error) const;
  /// Call it in a catch block.
  void write_failure() const;

  RankArguments options_;
  const RunDirectory directory_;
  std::shared_ptr<SharedMemory> memory_;
  std::optional<PlannedJob> job_;
  std::optional<Program> program_, beside_;  ///< the programs of beside_: those of the validation or of prompts
  std::optional<Program> exchange_;          ///< exchanges weights and their averages around validations
  std::optional<Program> synchronization_;   ///< updates the weights of all replicas (parallel.local_steps)
  std::optional<FileWatch> watch_;
};

}  // namespace trainctl
