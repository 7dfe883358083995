// trainctl checkpoint export: writes the weights with the names and layouts of another tool.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/commands/checkpoint/checkpoint_commands.h"
#include "cli/commands/checkpoint/choose_map.h"
#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/output_path.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/export_weights.h"

namespace trainctl {
namespace {

struct CheckpointExportArguments {
  std::string what;
  std::string log_dir = LaunchSpec{}.log_dir;
  std::string output;
  std::string map;
  std::string dtype = "f32";
  bool partial = false;
  bool force = false;
};

int write_export(const CheckpointExportArguments& options) {
  const NameMap map = choose_map(options.map);
  require_writable_file(options.output, "--output");
  if (!options.force && std::filesystem::exists(options.output))
    throw EnvError(options.output + " already exists; replace it with --force");
  const std::string path = find_checkpoint(options.what, options.log_dir, true);
  const Manifest manifest = read_manifest(path);
  const JobSpec job = load_job(path + "/job.yaml");
  const ExportedWeights done =
      export_weights(manifest, path, map, numbers_of(job), options.output,
                     {.dtype = options.dtype == "bf16" ? DType::bf16 : DType::f32, .partial = options.partial});
  std::cout << fmt::format("{}: {} tensors, {}, of step {}, from {}\n", options.output, done.tensors,
                           format_bytes(done.bytes), with_commas(manifest.step), path)
            << list_of("omitted because the map does not name them", done.left_out, true)
            << list_of("patterns of the map that match no tensor", done.unused, true);
  if (done.optimizer_tensors > 0)
    std::cout << fmt::format("  not exported: optimizer state, {} tensors\n", done.optimizer_tensors);
  return kExitDone;
}

}  // namespace

void add_checkpoint_export(CLI::App& checkpoint, Action& chosen) {
  auto options = std::make_shared<CheckpointExportArguments>();
  auto* command = checkpoint.add_subcommand("export", "Write the weights with the names of another tool");
  command->add_option("CHECKPOINT", options->what, "Folder of a checkpoint, a run, or a folder of checkpoints")
      ->required();
  command->add_option("-o,--output", options->output, "safetensors file to write")->required();
  add_map(*command, options->map);
  command->add_option("--dtype", options->dtype, "f32 | bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_flag("--partial", options->partial, "Omit tensors that the map does not name");
  command->add_flag("--force", options->force, "Replace the output file if it exists");
  add_log_dir(*command, options->log_dir);
  command->footer(
      R"(Writes whole weights and running statistics. The checkpoint is verified first, and the file is written atomically.
docs/weights.md describes maps.

Examples:
  trainctl checkpoint export 3 -o model.safetensors                      names as in the job
  trainctl checkpoint export 3 --map gpt2 -o hf/model.safetensors        for transformers, next to its config.json
  trainctl checkpoint export 3 --map my_map.yaml --dtype bf16 -o model.safetensors)");
  command->callback([&chosen, options] { chosen = [options] { return write_export(*options); }; });
}

}  // namespace trainctl
