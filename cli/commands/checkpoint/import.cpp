// trainctl checkpoint import: makes a checkpoint from another tool's weights, from which a run can start.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/commands/checkpoint/checkpoint_commands.h"
#include "cli/commands/checkpoint/choose_map.h"
#include "cli/commands/job_arguments.h"
#include "cli/output_path.h"
#include "cli/text/launch_report.h"
#include "cli/text/name_maps.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/model_folder/model_folder.h"
#include "engine/spec/parse.h"
#include "engine/spec/replicas.h"
#include "engine/train/checkpoint/import_weights.h"
#include "engine/train/data/read_and_plan.h"

namespace trainctl {
namespace {

struct CheckpointImportArguments {
  std::string file;
  JobArguments job;
  std::string output;
  std::string map;
  bool partial = false;
};

std::string path_without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// Writes a checkpoint from a file of weights, and prints how its tensors fit the job and how to run it.
int read_import(const CheckpointImportArguments& options) {
  NameMap map = choose_map(options.map, folder_of_weights(options.file));
  const std::string folder = path_without_slash(options.output);
  require_writable_folder(folder, "--output");
  JobSpec spec = options.job.load();
  if (spec.has_command()) throw SpecError({}, "--job", "the job runs a command and has no network", "");
  const PlannedJob job = plan_job(without_local_steps(std::move(spec)));
  MappedWeights weights(job, WeightFiles(options.file), std::move(map));
  weights.require_fit(options.partial,
                      "--partial imports the tensors that fit; if tensors are missing, the run needs --partial too");
  weights.require_equal_ties(options.partial);
  import_weights(job, weights, folder, {.version = TRAINCTL_VERSION, .job = to_yaml(without_env(job.spec))});
  const WeightMatch& match = weights.match();
  std::cout << fmt::format("{}: {} tensors, {} of {}\n", folder, weights.variables().size(),
                           format_bytes(weights.bytes()), weights.path())
            << list_of("tied", match.tied) << list_of("ignored by the map", match.ignored)
            << list_of("not in the file; the job's initializers apply", match.missing, true)
            << list_of("not in the job", match.extra, true) << list_of("with a different shape", match.reshaped, true)
            << (WeightsSpec{.from = "", .map = options.map}.map_is_file()
                    ? list_of("patterns of the map that match no tensor", match.unused, true)
                    : "");
  std::vector<std::string> next = {"trainctl", "run", options.job.file, "--resume-from", folder};
  if (!match.missing.empty() || !match.reshaped.empty()) next.emplace_back("--partial");
  next.insert(next.end(), options.job.overrides.begin(), options.job.overrides.end());
  std::cout << "next: " << shell_words(next) << "\n";
  return kExitDone;
}

}  // namespace

void add_checkpoint_import(CLI::App& checkpoint, Action& chosen) {
  auto options = std::make_shared<CheckpointImportArguments>();
  auto* command = checkpoint.add_subcommand("import", "Make a checkpoint at step 0 from another tool's weights");
  command
      ->add_option("FILE", options->file, "A safetensors file, an index of several, or a folder with model.safetensors")
      ->required();
  options->job.add_to(*command, "--job");
  command->add_option("-o,--output", options->output, "Folder of the new checkpoint")->required();
  add_map(*command, options->map);
  command->add_flag("--partial", options->partial, "Import the tensors that fit and list the others");
  command->footer(
      R"(The optimizer starts with fresh state. Tensors that are missing in the file, left over, or of a different shape are
listed; without --partial they are errors. docs/weights.md describes maps.

Examples:
  trainctl checkpoint import hf/model.safetensors --map gpt2 --job gpt2.yaml -o start vars.vocab=50257
  trainctl run gpt2.yaml --resume-from start vars.vocab=50257)");
  command->callback([&chosen, options] { chosen = [options] { return read_import(*options); }; });
}

}  // namespace trainctl
