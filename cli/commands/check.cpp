// trainctl check: validates a job file. It also plans the job, since some invalid strategies are found only then.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/check_plugin.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/errors.h"
#include "cli/run/launch/command_workload.h"
#include "cli/run/launch/planned_texts.h"
#include "cli/run/launch/trackers.h"
#include "cli/run/saves/start_weights.h"
#include "cli/text/launch_report.h"
#include "cli/watch_files.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/memory_limit.h"
#include "engine/planning/plan_job.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/data/sample_check.h"
#include "engine/train/data/sample_notes.h"
#include "launcher/rank_names.h"

namespace trainctl {
namespace {

constexpr const char* kCheckFooter =
    R"(Reads the job, builds its graph, plans it and verifies the programs of all ranks. Also checks that data files match
their checksums, that samples can be read (all of a small set, otherwise a part that is spread over it), that labels and
tokens are in the range of the network, and that the weights to start from have the names and shapes of the network. For
a job with a command, checks that its program and script exist. Probable mistakes are warnings and do not change the
exit code, which is 0 for a valid job. Starts nothing.

With --plugin: runs each op of a plugin on the shapes of its examples, under every legal cut, and compares it with one
rank; compares gradients with finite differences of the forward kernel; and finds kernels that write outside of their
results, or depend on what was in their memory. This runs the code of the plugin.

Examples:
  trainctl check job.yaml
  trainctl check job.yaml launch.ranks=12     is it valid with 12 ranks?
  trainctl check --plugin ./my_op.so)";

int check_command(const JobSpec& spec) {
  print_warnings(spec);
  require_program(spec);
  launch_report(spec);
  std::cout << spec.file << ": valid (" << shell_words(spec.command) << ", " << spec.launch.ranks
            << (spec.launch.ranks == 1 ? " rank)\n" : " ranks)\n");
  return kExitDone;
}

/// Plans the job, compiles its programs, and checks its data, weights and memory, as a run would before its first step.
/// Throws at the first problem.
int check_network(JobSpec spec) {
  print_warnings(spec);
  std::vector<Diagnostic> about_trackers;
  startable_trackers(spec, about_trackers);
  print_warnings(std::move(about_trackers));
  const auto watch = watch_files(spec.launch.timeout_seconds);
  const PlannedJob planned = plan_job(std::move(spec));
  require_intact_files(planned);
  require_sound_samples(planned, ReadSamples::all);
  require_start_weights(planned);
  RankClasses classes = compile_classes(planned);
  if (planned.validation) make_room_for(compile_validation_classes(planned), classes);
  if (const auto texts = plan_texts(planned)) make_room_for(*texts, classes);
  launch_report(planned.spec);
  require_memory_limit(planned, classes.programs);
  require_machine_memory(planned, classes.programs);
  const size_t layers = planned.spec.network.size();
  std::cout << planned.spec.file << ": valid (" << layers << (layers == 1 ? " layer, " : " layers, ")
            << processes_text(planned.spec.launch.ranks, planned.spec.servers()) << ")\n";
  for (const std::string& note : planned.plan.notes) std::cout << "note: " << note << "\n";
  for (const std::string& note : notes_on_samples(planned)) std::cout << "note: " << note << "\n";
  return kExitDone;
}

}  // namespace

void add_check_command(CLI::App& app, Action& chosen) {
  auto job = std::make_shared<JobArguments>();
  auto* command = app.add_subcommand("check", "Validate a job file and report all errors");
  job->add_to(*command);
  auto* const file = command->get_option("JOB.yaml")->required(false);
  auto plugin = std::make_shared<std::string>();
  command->add_option("--plugin", *plugin, "Test the layer types of this shared library instead of validating a job")
      ->type_name("FILE")
      ->excludes(file);
  command->footer(kCheckFooter);
  command->callback([&chosen, job, plugin, file] {
    if (plugin->empty() && file->count() == 0) throw CLI::RequiredError("JOB.yaml");
    chosen = [job, plugin] {
      if (!plugin->empty()) return check_plugin(*plugin);
      JobSpec spec = job->load();
      return spec.has_command() ? check_command(spec) : check_network(std::move(spec));
    };
  });
}

}  // namespace trainctl
