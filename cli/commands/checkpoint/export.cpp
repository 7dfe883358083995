// trainctl checkpoint export: writes the weights with the names and layouts of another tool.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/commands/checkpoint/checkpoint_commands.h"
#include "cli/commands/checkpoint/choose_map.h"
#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/output_path.h"
#include "cli/text/name_maps.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/model_folder/export_folder.h"
#include "engine/model_folder/model_folder.h"
#include "engine/spec/adapters.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/export_weights.h"
#include "engine/train/files/disk.h"

namespace trainctl {
namespace {

struct CheckpointExportArguments {
  std::string what;
  std::string log_dir = LaunchSpec{}.log_dir;
  std::string output;
  std::string map;
  std::string dtype = "f32";
  double shard_mb = 5000;
  bool partial = false;
  bool force = false;
};

namespace fs = std::filesystem;

/// The model folder that the weights of the job came from; "" if there is none.
std::string source_folder(const JobSpec& job) {
  if (!job.weights) return "";
  const std::string folder = folder_of_weights(job.weights->from);
  return fs::exists(fs::path(folder) / "config.json") ? folder : "";
}

/// For auto without a model folder: the first map that names every tensor of the checkpoint. The maps for which a
/// config.json can be made come first.
std::string fitting_map(const Manifest& manifest, const JobSpec& job) {
  const LayerNumbers layers = numbers_of(job);
  std::vector<std::string> names = {"gpt2", "llama"};
  for (const std::string& name : map_names()) names.push_back(name);
  for (const std::string& name : names) {
    const NameMap map = choose_map(name, "");
    const bool fits = std::all_of(manifest.tensors.begin(), manifest.tensors.end(), [&](const StoredTensor& tensor) {
      return is_adapter_parameter(job, tensor.name) || map.of_ours(tensor.name, layers).has_value();
    });
    if (fits) return name;
  }
  throw SpecError({}, "--map", "auto finds no map that names every tensor of this checkpoint",
                  "available maps: " + join(map_names()) + ", or a *.yaml file");
}

std::string map_to_use(const CheckpointExportArguments& options, const Manifest& manifest, const JobSpec& job) {
  if (options.map != "auto") return options.map;
  const std::string source = source_folder(job);
  return source.empty() ? fitting_map(manifest, job) : std::string(map_of_folder(source));
}

void write_text(const fs::path& path, const std::string& text) {
  DiskFile out(path.string());
  out.write(0, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  out.sync_and_close();
}

/// Writes the weights, config.json, and the files of the tokenizer. The folder appears when it is complete.
ExportedWeights write_folder(const CheckpointExportArguments& options, const Manifest& manifest,
                             const std::string& path, const JobSpec& job, const NameMap& map,
                             const std::string& map_name, const ExportOptions& how) {
  const fs::path folder = fs::path(options.output + "/").lexically_normal().parent_path();
  const fs::path part = folder.string() + ".part";
  const std::string source = source_folder(job);
  const std::string config =
      config_for_export(job, map_name, source, how.dtype == DType::bf16 ? "bfloat16" : "float32");
  fs::create_directories(part);
  try {
    const ExportedWeights done = export_to_folder(manifest, path, map, numbers_of(job), part.string(), how);
    write_text(part / "config.json", config);
    if (!source.empty())
      for (const std::string& file : companion_files(source)) fs::copy_file(fs::path(source) / file, part / file);
    fs::rename(part, folder);
    return done;
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(part, ignored);
    throw;
  }
}

bool is_folder(const CheckpointExportArguments& options) {
  return options.output.ends_with('/') || fs::is_directory(options.output);
}

void require_output(const CheckpointExportArguments& options) {
  if (is_folder(options)) {
    require_writable_folder(options.output, "--output");
    if (fs::exists(options.output) && !fs::is_empty(options.output))
      throw EnvError(options.output + " is not empty; choose another folder with -o");
    return;
  }
  require_writable_file(options.output, "--output");
  if (!options.force && fs::exists(options.output))
    throw EnvError(options.output + " already exists; replace it with --force");
}

int write_export(const CheckpointExportArguments& options) {
  require_output(options);
  const std::string path = find_checkpoint(options.what, options.log_dir, true);
  const Manifest manifest = read_manifest(path);
  const JobSpec job = load_job(path + "/job.yaml");
  const std::string map_name = map_to_use(options, manifest, job);
  const NameMap map = choose_map(map_name, "");
  ExportOptions how{.dtype = options.dtype == "bf16" ? DType::bf16 : DType::f32, .partial = options.partial};
  if (job.adapters.lora && !map_name.empty()) how.adapter_factor = adapter_factor(*job.adapters.lora);
  if (is_folder(options)) how.shard_bytes = std::llround(options.shard_mb * 1e6);
  const ExportedWeights done = is_folder(options)
                                   ? write_folder(options, manifest, path, job, map, map_name, how)
                                   : export_weights(manifest, path, map, numbers_of(job), options.output, how);
  std::cout << fmt::format("{}: {} tensors, {}, of step {}, from {}\n", options.output, done.tensors,
                           format_bytes(done.bytes), with_commas(manifest.step), path)
            << list_of("omitted because the map does not name them", done.left_out, true);
  if (WeightsSpec{.from = "", .map = map_name}.map_is_file())
    std::cout << list_of("patterns of the map that match no tensor", done.unused, true);
  if (done.merged_tensors > 0)
    std::cout << fmt::format("  adapters merged into their weights: {} tensors\n", done.merged_tensors);
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
  command
      ->add_option("-o,--output", options->output,
                   "safetensors file to write, or, with a / at its end, the model folder")
      ->required();
  add_map(*command, options->map);
  command->add_option("--dtype", options->dtype, "f32 | bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command
      ->add_option("--shard-size", options->shard_mb,
                   "For a model folder: most MB (10^6 bytes) per file; more become several files with an index")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command->add_flag("--partial", options->partial, "Omit tensors that the map does not name");
  command->add_flag("--force", options->force, "Replace the output file if it exists");
  add_log_dir(*command, options->log_dir);
  command->footer(
      R"(Writes whole weights and running statistics. The checkpoint is verified first, and the file is written atomically.
A model folder also has config.json, the generation config and the tokenizer, from the folder that the weights came
from.
docs/weights.md describes maps.

Examples:
  trainctl checkpoint export 3 -o model.safetensors                      names as in the job
  trainctl checkpoint export 3 --map auto -o tuned/                      a folder that transformers opens
  trainctl checkpoint export 3 --map my_map.yaml --dtype bf16 -o model.safetensors)");
  command->callback([&chosen, options] { chosen = [options] { return write_export(*options); }; });
}

}  // namespace trainctl
