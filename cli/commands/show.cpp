// trainctl show: prints the stages between a job file and a running rank as text.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/render/pass_report.h"
#include "cli/render/plan_report.h"
#include "cli/render/terminal.h"
#include "cli/render/weights.h"
#include "cli/watch_files.h"
#include "engine/base/text.h"
#include "engine/compile/compile.h"
#include "engine/compile/report/program_so_far.h"
#include "engine/compile/report/report.h"
#include "engine/planning/compile_job.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"

namespace trainctl {
namespace {

struct ShowArguments {
  JobArguments job;
  std::string what;
  int rank = 0;
  std::string after;  ///< a pass; "": the whole program
  bool passes = false;
};

void check_flags(const ShowArguments& options) {
  const std::string flag = options.passes ? "--passes" : "--after";
  if ((options.passes || !options.after.empty()) && options.what != "program") {
    throw SpecError({}, flag, "only a program has passes, not a " + options.what,
                    "trainctl show program " + options.job.file + " " + flag + (options.passes ? "" : " NAME"));
  }
  if (options.passes && !options.after.empty())
    throw SpecError({}, flag, "--passes and --after cannot be combined", "remove --passes or --after");
}

std::string unknown_pass(const std::string& word) {
  const std::vector<std::string> names = pass_names();
  if (std::find(names.begin(), names.end(), word) != names.end()) return "";
  const std::string near = did_you_mean(word, names);
  return "unknown pass '" + word + "'; " + (near.empty() ? "" : near + " ") + "available passes: " + join(names);
}

std::string program_text(const PlannedJob& job, const ShowArguments& options) {
  if (options.passes) return render_passes(time_passes(job, options.rank));
  if (options.after.empty()) return to_string(compile(job, options.rank));
  Compiler c(job.graph, job.plan, job.cost, rank_of_program(job.plan, options.rank));
  run_passes(passes_up_to(options.after), c);
  return to_string(c);
}

/// A network is the same under every plan, except for one that has its own collectives.
JobSpec on_one_rank(JobSpec spec) {
  if (spec.parallel.mode == ParallelMode::hybrid_parallel) return spec;
  spec.parallel = {};
  spec.launch.ranks = 1;
  spec.launch.hosts.clear();
  spec.launch.hostfile.clear();
  spec.launch.elastic.reset();
  return spec;
}

/// Prints what was asked for: the resolved job, its model, graph or plan, or the program or weights of one rank.
int show_job(const ShowArguments& options) {
  check_flags(options);
  JobSpec spec = options.job.load();
  if (options.what == "spec") {
    std::cout << to_yaml(spec);
    return kExitDone;
  }
  if (spec.has_command()) {
    throw SpecError(spec.position("command"), "command",
                    "a job with a command has no " + options.what + ", since its program is not planned",
                    "use trainctl plan to see what would be started");
  }
  const auto watch = watch_files(spec.launch.timeout_seconds);
  if (options.what == "model") spec = on_one_rank(std::move(spec));
  const PlannedJob job = plan_job(std::move(spec));
  if (options.rank < 0 || options.rank >= job.spec.processes()) {
    throw SpecError({}, "--rank", "there is no rank " + std::to_string(options.rank),
                    "the job has ranks 0 to " + std::to_string(job.spec.processes() - 1));
  }
  if (options.what == "graph") {
    std::cout << to_string(job.graph);
  } else if (options.what == "model") {
    std::cout << render_model(plan_report(job.spec, job.graph, job.plan, compile_classes(job)),
                              output_width(STDOUT_FILENO));
  } else if (options.what == "plan") {
    std::cout << render_plan(plan_report(job.spec, job.graph, job.plan, compile_classes(job)),
                             {.full = true, .width = 0});
  } else if (options.what == "program") {
    std::cout << program_text(job, options);
  } else {
    std::cout << render_weights(compile(job, options.rank));
  }
  return kExitDone;
}

}  // namespace

void add_show_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<ShowArguments>();
  auto* command =
      app.add_subcommand("show", "Print the resolved job, model, graph or plan, or a rank's program or weights");
  command->add_option("what", options->what, "spec | model | graph | plan | program | weights")
      ->required()
      ->check([](const std::string& word) {
        static const std::vector<std::string> kNouns = {"spec", "model", "graph", "plan", "program", "weights"};
        if (std::find(kNouns.begin(), kNouns.end(), word) != kNouns.end()) return std::string();
        if (word.ends_with(".yaml") || word.ends_with(".yml"))
          return "write what to show before the job: trainctl show plan " + word + "; available: " + join(kNouns);
        const std::string near = did_you_mean(word, kNouns);
        return "cannot show '" + word + "'; " + (near.empty() ? "available: " + join(kNouns) : near);
      });
  options->job.add_to(*command);
  command->add_option("--rank", options->rank, "Rank whose program or weights are shown")->capture_default_str();
  command->add_option("--after", options->after, "Show the program after this pass")
      ->type_name("PASS")
      ->check(unknown_pass, "");
  command->add_flag("--passes", options->passes, "Show what each pass does to the program, and its time");
  command->footer(R"(  spec      the resolved job file, with defaults, vars, modules and overrides applied
  model     output shape, parameters and operations of each layer
  graph     tensors and nodes of one micro-batch, with unsharded shapes
  plan      stage, strategy and layouts of each layer (also: trainctl plan)
  program   the instructions of one rank, in order of execution
  weights   the parameters of one rank: the shard of each, and its location in memory

Examples:
  trainctl show model job.yaml
  trainctl show graph job.yaml
  trainctl show program job.yaml --rank 3
  trainctl show program job.yaml --passes
  trainctl show program job.yaml --after lower_stage
  trainctl show weights job.yaml --rank 3 parallel.optimizer_shard.level=2)");
  command->callback([&chosen, options] { chosen = [options] { return show_job(*options); }; });
}

}  // namespace trainctl
