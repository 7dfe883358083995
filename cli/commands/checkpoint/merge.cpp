// trainctl checkpoint merge: writes one safetensors file of whole tensors.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/commands/checkpoint/checkpoint_commands.h"
#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/output_path.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"
#include "engine/train/checkpoint/write_whole.h"

namespace trainctl {
namespace {

struct CheckpointMergeArguments {
  std::string what;
  std::string log_dir = LaunchSpec{}.log_dir;
  std::string output;
  bool all = false;
  bool force = false;
};

int merge(const CheckpointMergeArguments& options) {
  require_writable_file(options.output, "--output");
  if (!options.force && std::filesystem::exists(options.output))
    throw EnvError(options.output + " already exists; replace it with --force");
  const std::string path = find_checkpoint(options.what, options.log_dir, true);
  const Manifest manifest = read_manifest(path);
  const StoredFile file =
      write_whole(manifest, path, options.output,
                  options.all ? std::vector<std::string>{} : std::vector<std::string>{"weight", "state"});
  std::cout << fmt::format("{}: {} of step {}, from {}\n", options.output, format_bytes(file.bytes),
                           with_commas(manifest.step), path);
  return kExitDone;
}

}  // namespace

void add_checkpoint_merge(CLI::App& checkpoint, Action& chosen) {
  auto options = std::make_shared<CheckpointMergeArguments>();
  auto* command = checkpoint.add_subcommand("merge", "Write one safetensors file of whole tensors");
  command->add_option("CHECKPOINT", options->what, "Folder of a checkpoint, a run, or a folder of checkpoints")
      ->required();
  command->add_option("-o,--output", options->output, "File to write")->required();
  command->add_flag("--all", options->all, "Include optimizer state, not only weights and running statistics");
  command->add_flag("--force", options->force, "Replace the output file if it exists");
  add_log_dir(*command, options->log_dir);
  command->footer(
      R"(Tensors have the names of the job and their slot: layer1.weight:weight. The checkpoint is verified first, and the file is
written atomically. train.checkpoint: {integrated: true} saves the same file, model.safetensors, in each checkpoint.

Examples:
  trainctl checkpoint merge 3 -o model.safetensors
  trainctl checkpoint merge log_output/3/checkpoints/step_00000120 -o all.safetensors --all)");
  command->callback([&chosen, options] { chosen = [options] { return merge(*options); }; });
}

}  // namespace trainctl
