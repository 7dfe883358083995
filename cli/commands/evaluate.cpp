// trainctl evaluate and predict: run the job's validation set with the weights of a checkpoint, under the job's plan.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>

#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/errors.h"
#include "cli/output_path.h"
#include "cli/render/run_view.h"
#include "cli/run/launch/run.h"
#include "cli/run/launch/workload.h"
#include "cli/watch_files.h"
#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/train/trainer/prediction.h"

namespace trainctl {
namespace {

struct EvaluateArguments {
  JobArguments job;
  std::string checkpoint;
  bool json = false;
};

struct PredictOptions {
  JobArguments job;
  std::string checkpoint, layer, output;
};

/// File that the ranks write until it is complete: "out.part.npy".
std::string part_name(const std::string& output) {
  const size_t dot = output.rfind('.');
  return output.substr(0, dot) + ".part" + output.substr(dot);
}

/// Turns off what only a training run does: saving, restarting, printing. Rows that pad a batch do not count, so the
/// batch may have any size that is divisible among the ranks.
JobSpec for_evaluation(JobSpec spec) {
  spec.train.checkpoint.emplace().every = "none";
  spec.train.stop_when.reset();
  spec.launch.max_restarts = 0;
  spec.print = {};
  const int64_t ranks = std::max(1, spec.launch.ranks / std::max(1, spec.parallel.stages));
  spec.dataset.batch = round_up(spec.dataset.batch, ranks * spec.parallel.micro_batches);
  return spec;
}

/// Redirects stdout to stderr during its lifetime.
class QuietStdout {
 public:
  QuietStdout() : stdout_(dup(STDOUT_FILENO)) { dup2(STDERR_FILENO, STDOUT_FILENO); }
  ~QuietStdout() {
    dup2(stdout_, STDOUT_FILENO);
    close(stdout_);
  }
  QuietStdout(const QuietStdout&) = delete;
  QuietStdout& operator=(const QuietStdout&) = delete;

 private:
  int stdout_;
};

/// Evaluations have a separate log directory, so that `latest` and --resume refer to training runs.
constexpr const char* kEvaluations = "/evaluations";

/// Exit code of the run, and its folder.
struct Ended {
  int code = kExitDone;
  RunDirectory directory;
};

Ended run_evaluation(const JobArguments& arguments, const EvaluateOptions& evaluate) {
  WorkloadOptions for_workload;
  JobSpec spec = arguments.load();
  for_workload.evaluate = evaluate;
  require_possible(spec, for_workload);
  if (!evaluate.checkpoint.empty()) {
    const CheckpointPlace place = find_checkpoints(evaluate.checkpoint, spec.launch.log_dir);
    for_workload.evaluate->checkpoint = place.checkpoint.empty() ? place.folder : place.checkpoint;
  }
  spec.launch.log_dir += kEvaluations;
  boost::asio::io_context loop;
  std::unique_ptr<Workload> workload;
  {
    const auto watch = watch_files(spec.launch.timeout_seconds);
    workload = make_workload(for_evaluation(std::move(spec)), for_workload, loop);
  }
  RunDisplayOptions display{.shown = {0}, .make_observer = [](int fd) { return std::make_unique<RunView>(fd); }};
  const auto run = make_run(std::move(workload), std::move(display), loop);
  const int code = (*run)();
  return {code, run->directory()};
}

void add_checkpoint_option(CLI::App& command, std::string& checkpoint) {
  command.add_option("--checkpoint", checkpoint,
                     "Checkpoint to use; for a folder of checkpoints or a run (folder, number or latest), the newest "
                     "one; default: the weights that the job starts from");
}

int evaluate(const EvaluateArguments& options) {
  std::optional<QuietStdout> quiet;
  if (options.json) quiet.emplace();
  const Ended ended = run_evaluation(options.job, {.checkpoint = options.checkpoint});
  quiet.reset();
  if (options.json && ended.code == kExitDone)
    std::cout << std::ifstream(ended.directory.file("evaluation.json")).rdbuf() << std::flush;
  return ended.code;
}

int predict(const PredictOptions& options) {
  require_prediction_name(options.output);
  require_writable_file(options.output, "-o");
  const std::string output = std::filesystem::absolute(options.output).string(), part = part_name(output);
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  EvaluateOptions evaluate{.checkpoint = options.checkpoint, .layer = options.layer, .output = part};
  const int code = run_evaluation(options.job, evaluate).code;
  if (code != kExitDone) {
    std::filesystem::remove(part, ignored);
    return code;
  }
  const int fd = open(part.c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_synced = fd >= 0 && fsync(fd) == 0;
  std::error_code error(is_synced ? 0 : errno, std::generic_category());
  if (fd >= 0) close(fd);
  if (is_synced) std::filesystem::rename(part, output, error);
  if (error) throw EnvError("cannot write " + output + ": " + error.message());
  std::cout << options.layer << ": written to " << options.output << "\n";
  return code;
}

}  // namespace

void add_evaluate_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<EvaluateArguments>();
  auto* command =
      app.add_subcommand("evaluate", "Compute loss and metrics of the validation set with a checkpoint's weights");
  options->job.add_to(*command);
  add_checkpoint_option(*command, options->checkpoint);
  command->add_flag("--json", options->json, "Print the results as JSON; other output goes to stderr");
  command->footer(
      R"(Runs only the forward pass: batch_norm uses its running statistics, and dropout is off. Each sample of the job's
validation.dataset counts exactly once, under any plan. Logs and evaluation.json, with the same results, are written to
log_output/evaluations/<number>.

Examples:
  trainctl evaluate job.yaml --checkpoint 3                    newest checkpoint of run 3
  trainctl evaluate job.yaml --checkpoint latest               newest checkpoint of the latest run
  trainctl evaluate job.yaml --checkpoint log_output/3/checkpoints/step_00000630 launch.ranks=2
  trainctl evaluate job.yaml --checkpoint 3 validation.dataset.split=test --json)");
  command->callback([&chosen, options] { chosen = [options] { return evaluate(*options); }; });
}

void add_predict_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<PredictOptions>();
  auto* command =
      app.add_subcommand("predict", "Write a layer's output for the validation set with a checkpoint's weights");
  options->job.add_to(*command);
  add_checkpoint_option(*command, options->checkpoint);
  command->add_option("--layer", options->layer, "Layer whose output is written")->required();
  command->add_option("-o,--output", options->output, "File to write, .npy or .safetensors")->required();
  command->footer(
      R"(Row i is the output for sample i of the job's validation.dataset, under any plan; bf16 is written as f32. Otherwise
the command works like trainctl evaluate.

Examples:
  trainctl predict job.yaml --checkpoint 3 --layer out -o logits.npy
  trainctl predict job.yaml --checkpoint 3 --layer fc1 -o features.safetensors launch.ranks=2)");
  command->callback([&chosen, options] { chosen = [options] { return predict(*options); }; });
}

}  // namespace trainctl
