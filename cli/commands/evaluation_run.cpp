// A run that trains nothing: it computes the outputs of a network for a set of samples, with the weights of a
// checkpoint.
#include "cli/commands/evaluation_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/render/run_view.h"
#include "cli/run/launch/run.h"
#include "cli/run/saves/checkpoints.h"
#include "cli/watch_files.h"
#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/spec/replicas.h"
#include "engine/train/checkpoint/save_policy.h"
#include "engine/train/data/dataset.h"

namespace trainctl {
namespace {

constexpr const char* kEvaluations = "/evaluations";

/// Turns off what only a training run does: saving, restarting, printing. Rows that pad a batch do not count, so the
/// batch may have any size that is divisible among the ranks.
JobSpec for_evaluation(JobSpec spec) {
  spec = without_local_steps(std::move(spec));
  spec.train.checkpoint.emplace().every = "none";
  spec.train.stop_when.reset();
  spec.launch.max_restarts = 0;
  spec.print = {};
  const int64_t ranks = std::max(1, spec.launch.ranks / std::max(1, spec.parallel.stages));
  spec.dataset.batch = round_up(spec.dataset.batch, ranks * spec.parallel.micro_batches);
  return spec;
}

bool keeps_best(const JobSpec& spec) { return spec.train.checkpoint && !spec.train.checkpoint->keep_best.empty(); }

/// The complete checkpoints of the newest run of this job that has any, the newest first.
std::vector<CheckpointEntry> checkpoints_of_newest_run(const JobSpec& spec) {
  std::vector<int> runs = list_runs(spec.launch.log_dir);
  std::reverse(runs.begin(), runs.end());
  for (const int run : runs) {
    const RunDirectory directory(spec.launch.log_dir, run);
    std::vector<CheckpointEntry> entries;
    try {
      entries = CheckpointDirectory(checkpoint_folder(directory)).list();
    } catch (const std::exception&) {  // a run whose job cannot be read any more has nothing to offer here
      continue;
    }
    std::erase_if(entries, [&](const CheckpointEntry& entry) {
      return !entry.complete() || entry.manifest.name != spec.name || entry.manifest.run != run;
    });
    if (!entries.empty()) return entries;
  }
  return {};
}

/// A run writes its folder to the current folder, which is usually that of its job file.
std::string hint_for_missing_runs(const JobSpec& spec) {
  const std::filesystem::path folder = std::filesystem::path(spec.file).parent_path();
  if (const std::string beside = (folder / spec.launch.log_dir).string();
      !folder.empty() && std::filesystem::path(spec.launch.log_dir).is_relative() && !list_runs(beside).empty())
    return "runs beside the job file are in " + beside + ": set launch.log_dir=" + beside;
  return "train it first: trainctl run " + spec.file + "; or name a checkpoint: --checkpoint FOLDER";
}

}  // namespace

QuietStdout::QuietStdout() : stdout_(dup(STDOUT_FILENO)) { dup2(STDERR_FILENO, STDOUT_FILENO); }
QuietStdout::~QuietStdout() {
  dup2(stdout_, STDOUT_FILENO);
  close(stdout_);
}

void add_checkpoint_option(CLI::App& command, std::string& checkpoint) {
  command.add_option("--checkpoint", checkpoint,
                     "Checkpoint to use: best, latest, a run (folder or number), a folder, or weights for those that "
                     "the job starts from; default: the best checkpoint of the job's newest run if the job sets "
                     "train.checkpoint.keep_best, otherwise the newest one");
}

std::string find_evaluated(const std::string& checkpoint, const JobSpec& spec) {
  const std::string metric = metric_of_best(spec.train);
  if (checkpoint == "weights") {
    if (!spec.weights)
      throw SpecError({}, "--checkpoint", "the job has no weights to start from",
                      "set weights: {from: DIR} in the job");
    return "";
  }
  if (!checkpoint.empty() && checkpoint != "best") {
    const CheckpointPlace place = find_checkpoints(checkpoint, spec.launch.log_dir);
    return place.checkpoint.empty() ? place.folder : place.checkpoint;
  }
  const std::vector<CheckpointEntry> entries = checkpoints_of_newest_run(spec);
  const bool wants_best = checkpoint == "best" || keeps_best(spec);
  if (wants_best)
    if (const std::string best = best_checkpoint(entries, metric); !best.empty()) return best;
  if (checkpoint == "best" && !entries.empty())
    throw SpecError(
        {}, "--checkpoint",
        "no checkpoint of run " + std::to_string(entries.front().manifest.run) + " has a validation " + metric,
        "use --checkpoint latest, or train with a validation");
  if (!entries.empty()) return std::filesystem::path(entries.front().path).parent_path().string();
  if (checkpoint.empty() && spec.weights) return "";
  throw SpecError({}, "--checkpoint",
                  "no run of the job '" + spec.name + "' in " + spec.launch.log_dir + " has a checkpoint",
                  hint_for_missing_runs(spec));
}

std::vector<std::string> class_names_of(const std::string& checkpoint, const JobSpec& spec) {
  if (!checkpoint.empty()) {
    const bool is_one = std::filesystem::exists(checkpoint + "/" + std::string(kManifestName));
    if (is_one) {
      if (std::vector<std::string> names = read_manifest(checkpoint).classes; !names.empty()) return names;
    } else if (const auto newest = CheckpointDirectory(checkpoint).newest_complete()) {
      if (!newest->manifest.classes.empty()) return newest->manifest.classes;
    }
  }
  try {
    return read_data_header(spec.dataset, spec.seed).classes;
  } catch (const SpecError&) {  // the training set need not be there
  } catch (const EnvError&) {
  }
  return {};
}

std::string prediction_file(const JobSpec& spec) {
  const std::filesystem::path folder = std::filesystem::absolute(spec.launch.log_dir + kEvaluations);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw EnvError("cannot create " + folder.string() + ": " + error.message());
  return (folder / fmt::format(".prediction.{}.npy", getpid())).string();
}

EvaluationEnd run_evaluation(JobSpec spec, const EvaluateOptions& evaluate) {
  WorkloadOptions for_workload;
  for_workload.evaluate = evaluate;
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

}  // namespace trainctl
