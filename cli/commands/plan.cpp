// trainctl plan: what a run will do, read off the programs that would run. Starts nothing.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/render/plan_report.h"
#include "engine/compile/report.h"
#include "engine/train/job.h"
#include "engine/train/memory_limit.h"

namespace trainctl {
namespace {

struct Options {
  JobArguments job;
  bool json = false;
};

int plan(const Options& options) {
  const PlannedJob job = plan_job(options.job.load());
  const std::vector<Program> programs = compile_all(job);
  const nlohmann::ordered_json report = plan_report(job.spec, job.graph, job.plan, programs);
  std::cout << (options.json ? report.dump(2) + "\n" : render_plan(report)) << std::flush;
  require_memory_limit(job, programs);  // shown all the same: it says where the memory goes
  return kExitDone;
}

}  // namespace

void add_plan_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("plan", "Say what a run will do: layouts, schedule, memory, communication");
  options->job.add_to(*command);
  command->add_flag("--json", options->json, "All of it as JSON");
  command->footer(R"(Starts nothing, and needs neither a GPU nor more of the data than file headers.

Examples:
  trainctl plan job.yaml
  trainctl plan job.yaml parallel.stages=4 launch.ranks=8
  trainctl plan job.yaml --json | jq '.rank_programs[0].memory')");
  command->callback([&chosen, options] { chosen = [options] { return plan(*options); }; });
}

}  // namespace trainctl
