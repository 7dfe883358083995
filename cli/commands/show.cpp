// trainctl show: the nouns between a job file and a running rank, as text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/render/plan_report.h"
#include "cli/render/weights.h"
#include "engine/base/text.h"
#include "engine/compile/report.h"
#include "engine/train/job.h"

namespace trainctl {
namespace {

struct Options {
  JobArguments job;
  std::string what;
  int rank = 0;
};

int show(const Options& options) {
  JobSpec spec = options.job.load();
  if (spec.has_command()) {
    throw SpecError(spec.position("command"), "command",
                    "a job with a command has no " + options.what + " to show: what its program computes is its own",
                    "trainctl plan says what would be started");
  }
  const PlannedJob job = plan_job(std::move(spec));
  if (options.rank < 0 || options.rank >= job.plan.ranks) {
    throw SpecError({}, "--rank", "there is no rank " + std::to_string(options.rank),
                    "the job has ranks 0 to " + std::to_string(job.plan.ranks - 1));
  }
  if (options.what == "graph") {
    std::cout << to_string(job.graph);
  } else if (options.what == "plan") {
    std::cout << render_plan(plan_report(job.spec, job.graph, job.plan, compile_classes(job)));
  } else if (options.what == "program") {
    std::cout << to_string(compile(job, options.rank));
  } else {
    std::cout << render_weights(compile(job, options.rank));
  }
  return kExitDone;
}

}  // namespace

void add_show_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("show", "Print the graph, the plan, or a rank's program or weights");
  command->add_option("what", options->what, "graph | plan | program | weights")
      ->required()
      ->check([](const std::string& word) {
        static const std::vector<std::string> kNouns = {"graph", "plan", "program", "weights"};
        if (std::find(kNouns.begin(), kNouns.end(), word) != kNouns.end()) return std::string();
        const std::string near = did_you_mean(word, kNouns);
        return "there is nothing called '" + word + "' to show; " + (near.empty() ? "there are " + join(kNouns) : near);
      });
  options->job.add_to(*command);
  command->add_option("--rank", options->rank, "Whose program or weights")->capture_default_str();
  command->footer(R"(  graph     every tensor and node of one micro-batch, whole shapes, no devices
  plan      stage, strategy and layouts of each layer (also: trainctl plan)
  program   the instructions of one rank, as they will run
  weights   the parameters of one rank: which part of each, and where in its memory

Examples:
  trainctl show graph job.yaml
  trainctl show program job.yaml --rank 3
  trainctl show weights job.yaml --rank 3 parallel.optimizer_shard.level=2)");
  command->callback([&chosen, options] { chosen = [options] { return show(*options); }; });
}

}  // namespace trainctl
