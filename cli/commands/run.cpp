// trainctl run: plans and verifies the job, starts the ranks, and supervises them to the end.
#include "cli/run/launch/run.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <numeric>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/errors.h"
#include "cli/output_path.h"
#include "cli/render/run_view.h"
#include "cli/run/clusters/gathering.h"
#include "cli/run/clusters/submission.h"
#include "cli/run/launch/background.h"
#include "cli/run/launch/trackers.h"
#include "cli/run/launch/workload.h"
#include "cli/watch_files.h"
#include "engine/base/error.h"
#include "launcher/clusters/fill.h"
#include "launcher/log_selection.h"

namespace trainctl {
namespace {

struct RunCommandArguments {
  JobArguments job;
  bool record = false;
  bool detach = false;
  bool dry_run = false;
  std::string profile;  ///< empty: none
  std::string profile_steps = "3-5";
  std::string show;  ///< empty: rank 0
  ResumeOptions resume;
};

/// The value of `--profile` without a file.
constexpr const char* kInRunFolder = "trace.json in the run's folder";

std::vector<int> shown_ranks(const std::string& text, int ranks) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  if (text.empty()) return {0};
  if (text == "all") return all;
  std::vector<int> chosen;
  try {
    chosen = parse_ranks(text);
  } catch (const std::invalid_argument& error) {
    throw SpecError({}, "--show", error.what(), "e.g. 0,3-5 or all");
  }
  for (const int rank : chosen) {
    if (rank >= ranks)
      throw SpecError({}, "--show", "there is no rank " + std::to_string(rank),
                      "the job has ranks 0 to " + std::to_string(ranks - 1));
  }
  return chosen;
}

WorkloadOptions workload_options(const RunCommandArguments& options) {
  WorkloadOptions result;
  result.record = options.record;
  result.resume = options.resume;
  if (options.profile.empty()) return result;
  if (options.profile != kInRunFolder) require_writable_file(options.profile, "--profile");
  ProfileOptions& profile = result.profile.emplace();
  profile.steps = parse_profile_steps(options.profile_steps);
  if (options.profile != kInRunFolder) profile.file = options.profile;
  return result;
}

/// A run's input besides its options: the job as it will run, and the hosts that a cluster manager has allocated.
struct Task {
  JobSpec spec;
  clusters::StartedBy by;
  Gathering gathering;
  std::vector<TrackerSpec> trackers = {};  ///< trackers that can start
};

/// Throws SpecError if a tracker that the job requires cannot start; warns of others.
std::vector<TrackerSpec> trackers_of(const JobSpec& spec) {
  std::vector<Diagnostic> found;
  std::vector<TrackerSpec> trackers = startable_trackers(spec, found);
  print_warnings(std::move(found));
  return trackers;
}

int run(const RunCommandArguments& options, const Task& task, const WorkloadOptions& for_workload,
        Background* background) {
  boost::asio::io_context loop;
  const auto make = [&loop](JobSpec job, const WorkloadOptions& of_workload) {
    const auto watch = watch_files(job.launch.timeout_seconds);
    return make_workload(std::move(job), of_workload, loop);
  };
  std::unique_ptr<Workload> workload = make(task.spec, for_workload);
  std::vector<int> shown = shown_ranks(options.show, workload->spec().launch.ranks);
  const auto plans = std::make_shared<PlansAhead>();
  const Replan replan = {.now =
                             [&](JobSpec job, const std::string& checkpoint) {
                               WorkloadOptions later = for_workload;
                               later.start_up = {};
                               later.plans = plans;
                               if (!checkpoint.empty()) later.resume = {.from = checkpoint};
                               later.resume.continues_run = true;
                               return make(std::move(job), later);
                             },
                         .ahead = [&](JobSpec job) { plans->plan(std::move(job)); }};
  RunDisplayOptions display{.shown = std::move(shown),
                            .make_observer = [](int fd) { return std::make_unique<RunView>(fd); },
                            .background = background};
  const auto run = make_run(std::move(workload), std::move(display), loop, task.gathering.transport, replan);
  write_cluster(task.by, run->directory().path());
  run->track(std::make_unique<TrackerProcesses>(task.spec, task.trackers));
  return (*run)();
}

/// Continues a job that a queue has started again, or whose pod 0 Kubernetes has replaced, from its newest checkpoint,
/// if there is one. Only Slurm reports how often it has started a job.
void resume_earlier(const Task& task, ResumeOptions& resume) {
  const bool is_pod = task.by.manager == clusters::Manager::pods;
  const bool is_counted = !is_pod && task.by.manager != clusters::Manager::queue;
  if (task.by.job.empty() || (task.by.restarts == 0 && is_counted)) return;
  if (!task.spec.train.saves_state() || resume.resume || !resume.from.empty()) return;
  const int run = earlier_run(task.by, task.spec.launch.log_dir);
  if (run > 0) resume.from = task.spec.launch.log_dir + "/" + std::to_string(run);
  if (!is_counted && run == 0) return;
  std::cout << (is_pod       ? "an earlier pod 0 has already run this job"
                : is_counted ? "start " + std::to_string(task.by.restarts + 1) + " of Slurm job " + task.by.job
                             : task.by.name + " job " + task.by.job + " has run before")
            << (run > 0 ? ": resuming from run " + std::to_string(run)
                        : ": no checkpoint yet, starting from the beginning")
            << std::endl;
}

std::string with_log_dir(const std::string& log_dir) {
  return log_dir == LaunchSpec{}.log_dir ? "" : " --log-dir " + clusters::shell_word(log_dir);
}

int submit_job(const RunCommandArguments& options, const JobSpec& spec) {
  if (options.dry_run) {
    std::cout << submission_text(options.job, spec);
    return kExitDone;
  }
  const clusters::SubmittedJob job =
      submit(options.job, spec, [](const std::string& command) { std::cout << command << std::endl; });
  std::cout << spec.name << ": Slurm job " << job.id << "\n  trainctl ps\n  trainctl logs"
            << with_log_dir(spec.launch.log_dir) << " --follow\n  trainctl stop --slurm " << job.id << "\n";
  clusters::remember(job);
  return kExitDone;
}

/// First checks everything that the options and the job alone can have wrong, because planning may take a while, and a
/// detached run has neither standard input nor a terminal.
int run(const RunCommandArguments& options) {
  if (options.detach && !options.show.empty())
    throw SpecError({}, "--show", "--detach shows no output", "use trainctl attach --rank 3 or trainctl logs --follow");
  WorkloadOptions for_workload = workload_options(options);
  Task task{.spec = options.job.load(), .by = clusters::started_by(), .gathering = {}};
  if (task.by.index > 0) return serve_gathering(task.by);
  print_warnings(task.spec);
  require_writable_folder(task.spec.launch.log_dir, "launch.log_dir");
  if (is_submitted(task.spec, task.by)) return submit_job(options, task.spec);
  task.gathering = gather(task.by, task.spec, [](const std::string& line) { std::cerr << line << std::endl; });
  const auto report_end = [&](int code) {
    if (task.gathering.end) task.gathering.end(code);
    return code;
  };
  try {
    if (!task.gathering.notice.empty()) std::cout << task.gathering.notice << std::endl;
    if (!task.gathering.overrides.empty()) task.spec = options.job.with(task.gathering.overrides).load();
    require_possible(task.spec, for_workload);
    shown_ranks(options.show, task.spec.launch.ranks);
    if (options.dry_run) {
      std::cout << start_commands(task.spec, task.gathering.transport.get());
      return report_end(kExitDone);
    }
    task.trackers = trackers_of(task.spec);
    resume_earlier(task, for_workload.resume);
    if (!options.detach) return report_end(run(options, task, for_workload, nullptr));
    return in_background(
        [&](Background& background) { return report_end(run(options, task, for_workload, &background)); },
        [](const std::string& message) { std::cout << message << std::flush; });
  } catch (...) {
    report_end(kExitEnv);
    throw;
  }
}

}  // namespace

void add_run_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<RunCommandArguments>();
  auto* command = app.add_subcommand("run", "Start the ranks of a job and supervise them");
  options->job.add_to(*command);
  command->add_flag("-d,--detach", options->detach,
                    "Return once the ranks have started; the run continues without the terminal");
  command->add_flag("--dry-run", options->dry_run, "Only print the commands that would start the job");
  command->add_option("--show", options->show, "Ranks whose output is shown, e.g. 0,3-5, or all; default: 0");
  command->add_flag("--record", options->record,
                    "Record the collectives of each rank's first step in rank.N/collectives.jsonl");
  auto* profile = command->add_flag(std::string("--profile{") + kInRunFolder + "}", options->profile,
                                    "Profile a few steps: print a summary, and write a trace for ui.perfetto.dev to "
                                    "log_output/<run>/trace.json, or to FILE with --profile=FILE");
  command->add_option("--profile-steps", options->profile_steps, "Steps to profile, counted from 1")
      ->capture_default_str()
      ->needs(profile);
  command->add_flag("--resume", options->resume.resume,
                    "Resume from the job's newest complete checkpoint; the plan may have changed");
  command->add_option("--resume-from", options->resume.from,
                      "Resume from this checkpoint, or from the newest of a run (number, folder or latest)");
  command->add_flag("--partial", options->resume.partial,
                    "Resume even if the network or optimizer has changed; load only matching tensors");
  command->footer(
      R"(Plans and verifies the job, then starts its ranks. Their output goes to log_output/<run>/rank.<N>/stdout and stderr;
the output of rank 0 is also shown. Ctrl-C asks the ranks to stop; a second Ctrl-C kills them.

Examples:
  trainctl run job.yaml
  trainctl run job.yaml launch.ranks=4 parallel.stages=2 train.steps=100
  trainctl run job.yaml --show all              show the output of all ranks, prefixed with the rank
  trainctl run job.yaml --profile train.steps=5
  trainctl run job.yaml --resume launch.ranks=6  resume under another plan
  trainctl run job.yaml --detach                then: trainctl ps, attach, logs, stop
  trainctl run job.yaml launch.target=slurm     submit to Slurm, or run in the current allocation
  mpirun -n 2 trainctl run job.yaml             run on the hosts of mpirun

A job can name a program instead of a network:  command: [python3, train.py])");
  command->callback([&chosen, options] { chosen = [options] { return run(*options); }; });
}

}  // namespace trainctl
