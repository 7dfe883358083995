// A run that trains nothing: it computes the outputs of a network for a set of samples, with the weights of a
// checkpoint.
#pragma once

#include <string>
#include <vector>

#include "cli/run/launch/workload.h"
#include "engine/spec/job_spec.h"
#include "launcher/run_directory.h"

namespace CLI {
class App;
}

namespace trainctl {

/// Redirects stdout to stderr during its lifetime.
class QuietStdout {
 public:
  QuietStdout();
  ~QuietStdout();
  QuietStdout(const QuietStdout&) = delete;
  QuietStdout& operator=(const QuietStdout&) = delete;

 private:
  int stdout_;
};

/// Exit code of the run, and its folder.
struct EvaluationEnd {
  int code = 0;
  RunDirectory directory;
};

/// Adds --checkpoint.
void add_checkpoint_option(CLI::App& command, std::string& checkpoint);

/// The checkpoint that --checkpoint names: "best", "latest", "weights", a run, or a folder. "" stands for the job's
/// newest run with a checkpoint: its best one if the job has keep_best, otherwise its newest one; without such a run,
/// for the weights that the job starts from. Returns a folder of a checkpoint, or of checkpoints; "" for those weights.
/// Throws SpecError (--checkpoint) if there is none.
std::string find_evaluated(const std::string& checkpoint, const JobSpec& spec);

/// The names of the classes that the checkpoint stores (the newest one of a folder of checkpoints), or those of the
/// job's training set if that can be read; empty if classes have no names.
std::vector<std::string> class_names_of(const std::string& checkpoint, const JobSpec& spec);

/// A file in which a run leaves its prediction for this command, in the folder of the evaluations. Throws EnvError if
/// the folder cannot be created.
std::string prediction_file(const JobSpec& spec);

/// Runs it. `evaluate.checkpoint` is a result of find_evaluated. Logs are in a folder of their own, so that `latest`
/// and
/// --resume refer to runs that trained.
EvaluationEnd run_evaluation(JobSpec spec, const EvaluateOptions& evaluate);

}  // namespace trainctl
