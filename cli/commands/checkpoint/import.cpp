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
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/parse.h"
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

int read_import(const CheckpointImportArguments& options) {
  NameMap map = choose_map(options.map);
  const std::string folder = path_without_slash(options.output);
  require_writable_folder(folder, "--output");
  JobSpec spec = options.job.load();
  if (spec.has_command()) throw SpecError({}, "--job", "the job runs a command and has no network", "");
  const PlannedJob job = plan_job(std::move(spec));
  const WeightFiles files(options.file);
  const ImportedWeights done =
      import_weights(job, files, std::move(map), folder,
                     {.version = TRAINCTL_VERSION, .job = to_yaml(without_env(job.spec)), .partial = options.partial});
  std::cout << fmt::format("{}: {} tensors, {} of {}\n", folder, done.tensors, format_bytes(done.bytes), files.path())
            << list_of("tied", done.tied) << list_of("ignored by the map", done.ignored)
            << list_of("not in the file; the job's initializers apply", done.missing, true)
            << list_of("not in the job", done.extra, true) << list_of("with a different shape", done.reshaped, true)
            << list_of("patterns of the map that match no tensor", done.unused, true);
  std::vector<std::string> next = {"trainctl", "run", options.job.file, "--resume-from", folder};
  if (!done.missing.empty() || !done.reshaped.empty()) next.emplace_back("--partial");
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
