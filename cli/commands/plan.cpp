// trainctl plan: what a run will do, derived from the programs that would run. Starts nothing.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/errors.h"
#include "cli/launch/command_workload.h"
#include "cli/render/launch_report.h"
#include "cli/render/plan_report.h"
#include "cli/render/terminal.h"
#include "engine/compile/report.h"
#include "engine/train/checkpoint/checkpoint_report.h"
#include "engine/train/data/index_check.h"
#include "engine/train/job.h"
#include "engine/train/memory_limit.h"

namespace trainctl {
namespace {

struct Options {
  JobArguments job;
  bool json = false;
  bool full = false;
};

/// A file or a pipe has no width of its own.
PlanStyle style_of(const Options& options) {
  constexpr size_t kPlainWidth = 120;
  const bool terminal = is_terminal(STDOUT_FILENO);
  if (terminal) return {options.full, static_cast<size_t>(terminal_width(STDOUT_FILENO))};
  return {options.full, options.full ? 0 : kPlainWidth};
}

int plan_command(const JobSpec& spec, bool json) {
  require_program(spec);
  const nlohmann::ordered_json report = command_report(spec);
  std::cout << (json ? report.dump(2) + "\n" : render_command(report));
  return kExitDone;
}

int plan(const Options& options) {
  JobSpec spec = options.job.load();
  if (spec.has_command()) return plan_command(spec, options.json);
  print_warnings(spec);
  const PlannedJob job = plan_job(std::move(spec));
  require_indices_in_range(job);
  const RankClasses classes = compile_classes(job);
  nlohmann::ordered_json report = plan_report(job.spec, job.graph, job.plan, classes);
  if (job.spec.train.checkpoint) report["checkpoint"] = checkpoint_report(job);
  report["launch"] = launch_report(job.spec);
  std::cout << (options.json ? report.dump(2) + "\n"
                             : render_plan(report, style_of(options)) + render_launch(report["launch"]))
            << std::flush;
  require_memory_limit(job, classes.programs);  // after printing the plan, which shows where the memory goes
  return kExitDone;
}

}  // namespace

void add_plan_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("plan", "Say what a run will do: layouts, schedule, memory, communication, processes");
  options->job.add_to(*command);
  command->add_flag("--full", options->full, "Every layer and redistribution on a line of its own");
  command->add_flag("--json", options->json, "All of it as JSON");
  command->footer(
      R"(Starts nothing, and needs no GPU. Of the data it reads file headers, and what the network uses as indices.

Examples:
  trainctl plan job.yaml
  trainctl plan job.yaml parallel.stages=4 launch.ranks=8
  trainctl plan job.yaml launch.bind=core       which cores would each rank have?
  trainctl plan job.yaml --full                 layers that repeat, one by one
  trainctl plan job.yaml --json | jq '.rank_classes[0].memory')");
  command->callback([&chosen, options] { chosen = [options] { return plan(*options); }; });
}

}  // namespace trainctl
