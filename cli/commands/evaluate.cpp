// trainctl evaluate: the job's validation set with the weights of a checkpoint, under the job's plan.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/errors.h"
#include "cli/launch/run.h"
#include "cli/launch/workload.h"
#include "engine/base/error.h"
#include "engine/base/round_up.h"

namespace trainctl {
namespace {

struct Options {
  JobArguments job;
  std::string checkpoint;
  bool json = false;
};

/// What a run of its own would do otherwise: save, restart, print. Rows that fill up a batch do not count, so the batch
/// may be any that the ranks divide.
JobSpec for_evaluation(JobSpec spec) {
  spec.train.checkpoint.reset();
  spec.train.stop_when.reset();
  spec.launch.max_restarts = 0;
  spec.print = {};
  const int64_t ranks = std::max(1, spec.launch.ranks / std::max(1, spec.parallel.stages));
  spec.dataset.batch = round_up(spec.dataset.batch, ranks * spec.parallel.micro_batches);
  return spec;
}

/// While it lives, what is written to stdout goes to stderr.
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

int evaluate(const Options& options) {
  WorkloadOptions for_workload;
  for_workload.evaluate = EvaluateOptions{options.checkpoint};
  JobSpec spec = options.job.load();
  require_possible(spec, for_workload);
  spec = for_evaluation(std::move(spec));
  boost::asio::io_context loop;
  std::string result;
  int code = kExitDone;
  {
    std::optional<QuietStdout> quiet;
    if (options.json) quiet.emplace();
    const std::unique_ptr<Workload> workload = make_workload(std::move(spec), for_workload, loop);
    Run run(*workload, {0}, loop, nullptr);
    code = run();
    result = run.directory().file("evaluation.json");
  }
  if (options.json && code == kExitDone) std::cout << std::ifstream(result).rdbuf() << std::flush;
  return code;
}

}  // namespace

void add_evaluate_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("evaluate", "Loss and metrics of the validation set, with a checkpoint's weights");
  options->job.add_to(*command);
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "A checkpoint, a folder of checkpoints, a run's folder or its number: the newest in it")
      ->required();
  command->add_flag("--json", options->json, "The numbers as JSON; all else goes to stderr");
  command->footer(R"(Runs forward only: batch_norm takes its running statistics, and dropout passes everything. Each sample of the
job's validation.dataset counts once, under any plan. The numbers are also in evaluation.json in the run's folder.

Examples:
  trainctl evaluate job.yaml --checkpoint 3                    the newest of run 3
  trainctl evaluate job.yaml --checkpoint log_output/3/checkpoints/step_00000630 launch.ranks=2
  trainctl evaluate job.yaml --checkpoint 3 validation.dataset.split=test --json)");
  command->callback([&chosen, options] { chosen = [options] { return evaluate(*options); }; });
}

}  // namespace trainctl
