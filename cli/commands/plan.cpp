// trainctl plan: shows what a run would do, derived from the programs that would run. Starts nothing.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/errors.h"
#include "cli/render/plan_colors.h"
#include "cli/render/plan_report.h"
#include "cli/render/terminal.h"
#include "cli/run/launch/command_workload.h"
#include "cli/run/launch/job_report.h"
#include "cli/run/saves/start_weights.h"
#include "cli/text/launch_report.h"
#include "cli/watch_files.h"
#include "engine/base/output_file.h"
#include "engine/planning/memory_limit.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/profile/trace.h"

namespace trainctl {
namespace {

struct PlanArguments {
  JobArguments job;
  bool json = false, full = false, layers = false, moves = false;
  std::string timeline;  ///< a file; empty: none
  std::string write;     ///< a file; empty: none
  int top = 3;           ///< number of a search's plans that are shown
  std::string color = "auto";
};

PlanStyle style_of(const PlanArguments& options) {
  return {options.full, options.layers, options.moves, output_width(STDOUT_FILENO)};
}

std::string colored(const PlanArguments& options, std::string text) {
  return colors(STDOUT_FILENO, options.color) ? color_plan(text) : text;
}

int plan_command(const JobSpec& spec, const PlanArguments& options) {
  require_program(spec);
  const nlohmann::ordered_json report = command_report(spec);
  std::cout << (options.json ? report.dump(2) + "\n"
                             : colored(options, render_command(report, output_width(STDOUT_FILENO))));
  return kExitDone;
}

/// The predicted step of the first rank of each class, as `trainctl run --profile` would have measured it.
void write_timeline(const PlannedJob& job, const RankClasses& classes, const Simulation& step,
                    const std::string& path) {
  const auto ns = [](Seconds time) { return std::llround(time.value * 1e9); };
  std::vector<RankProfile> profiles;
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    RankProfile& profile = profiles.emplace_back(RankProfile{&classes.programs[c], {}});
    for (size_t i = 0; i < step.spans[c].size(); ++i) {
      const SimulatedSpan& span = step.spans[c][i];
      // A measured call begins when the rank reaches it, whether or not its peers have.
      profile.spans.push_back({.instruction = static_cast<int32_t>(i),
                               .ready_ns = ns(span.ready),
                               .begin_ns = ns(span.ready),
                               .end_ns = ns(span.end)});
    }
  }
  std::ostringstream text;
  write_trace(text, profiles, job.spec.name);
  write_output(path, text.str());
}

void write_job(const JobSpec& spec, const std::string& path) { write_output(path, to_yaml(spec), readers_of(spec)); }

/// Keeps only the first plans of a search, those to show.
nlohmann::ordered_json top_of(nlohmann::ordered_json search, size_t top) {
  nlohmann::ordered_json& tried = search["tried"];
  search["not_shown"] = tried.size() > top ? tried.size() - top : 0;
  while (tried.size() > top) tried.erase(tried.size() - 1);
  return search;
}

int plan(const PlanArguments& options) {
  JobSpec spec = options.job.load();
  if (spec.has_command()) return plan_command(spec, options);
  print_warnings(spec);
  const auto watch = watch_files(spec.launch.timeout_seconds);
  const PlannedJob job = plan_job(std::move(spec));
  require_start_weights(job);
  JobReport planned = report_of(job, !options.timeline.empty());
  nlohmann::ordered_json report = std::move(planned.json);
  if (report.contains("search")) report["search"] = top_of(report["search"], static_cast<size_t>(options.top));
  if (!options.write.empty()) write_job(job.spec, options.write);
  if (!options.timeline.empty())
    write_timeline(job, planned.estimate->simulated(planned.classes), planned.estimate->step, options.timeline);
  std::cout << (options.json ? report.dump(2) + "\n"
                             : colored(options, render_plan(report, style_of(options)) +
                                                    render_launch(report["launch"], output_width(STDOUT_FILENO))))
            << std::flush;
  // After printing the plan, which shows where the memory goes.
  require_memory_limit(job, planned.classes.programs);
  require_machine_memory(job, planned.classes.programs);
  return kExitDone;
}

}  // namespace

void add_plan_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<PlanArguments>();
  auto* command =
      app.add_subcommand("plan", "Show what a run would do: layouts, schedule, memory, communication, processes");
  options->job.add_to(*command);
  command->add_flag("--layers", options->layers, "Show each layer: output shape, parameters, flops, cuts and reasons");
  command->add_flag("--moves", options->moves, "Show the messages between layers and stages");
  command->add_flag("--full", options->full, "Show both, every layer and message on a separate line");
  command->add_option("--timeline", options->timeline, "Write the predicted step as a trace for ui.perfetto.dev")
      ->type_name("FILE");
  command->add_option("--write", options->write, "Write the job as YAML, including all automatic choices")
      ->type_name("FILE");
  command->add_option("--top", options->top, "Number of a search's plans to show")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print the plan as JSON");
  command->add_option("--color", options->color, "Use colors; auto: on a terminal, unless NO_COLOR is set")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
  command->footer(
      R"(Starts nothing and needs no GPU. From the data set it reads only file headers and fields that the network uses as indices.

Examples:
  trainctl plan job.yaml
  trainctl plan job.yaml parallel.stages=4 launch.ranks=8
  trainctl plan job.yaml launch.bind=core       which cores each rank would use
  trainctl plan job.yaml launch.machine=h100x8 --timeline t.json
  trainctl plan job.yaml parallel.mode=auto_parallel launch.machine=h200x8 --top 5 --write found.yaml
  trainctl plan job.yaml --layers --moves       how each layer is cut, and what that sends
  trainctl plan job.yaml --full                 list repeated layers one by one
  trainctl plan job.yaml --layers --color always | less -R
  trainctl plan job.yaml --json | jq '.rank_classes[0].memory')");
  command->callback([&chosen, options] { chosen = [options] { return plan(*options); }; });
}

}  // namespace trainctl
