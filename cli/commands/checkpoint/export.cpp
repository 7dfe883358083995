// trainctl checkpoint export: writes the weights with the names and layouts of another tool.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands/checkpoint/checkpoint_commands.h"
#include "cli/commands/checkpoint/choose_map.h"
#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/output_path.h"
#include "cli/run/saves/start_weights.h"
#include "cli/text/name_maps.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/model_folder/export_folder.h"
#include "engine/model_folder/model_folder.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/spec/adapters.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/export_adapters.h"
#include "engine/train/checkpoint/export_weights.h"
#include "engine/train/checkpoint/gguf/write_gguf.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/disk.h"

namespace trainctl {
namespace {

struct CheckpointExportArguments {
  std::string what;
  std::string log_dir = LaunchSpec{}.log_dir;
  std::string output;
  std::string map;
  std::string format;     ///< empty: by the name of the output
  std::string dtype;      ///< empty: f32, or f16 in a GGUF file
  std::string tokenizer;  ///< GGUF: folder; empty: that of the weights or of the data
  double shard_mb = 5000;
  bool partial = false;
  bool latest_weights = false;
  bool force = false;
  bool adapters = false;
  std::string adapter;
};

namespace fs = std::filesystem;

bool is_gguf(const CheckpointExportArguments& options) {
  return options.format == "gguf" || (options.format.empty() && options.output.ends_with(".gguf"));
}

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
  const std::vector<StoredTensor> tensors = manifest.with_base();
  std::vector<std::string> names = {"gpt2", "llama", "mixtral", "qwen3_moe"};
  for (const std::string& name : map_names()) names.push_back(name);
  for (const std::string& name : names) {
    const NameMap map = choose_map(name, "");
    const bool fits = std::all_of(tensors.begin(), tensors.end(), [&](const StoredTensor& tensor) {
      return is_adapter_parameter(job, tensor.name) || is_step_statistic(tensor.name) ||
             map.of_ours(tensor.name, layers).has_value();
    });
    if (fits) return name;
  }
  throw SpecError({}, "--map", "auto finds no map that names every tensor of this checkpoint",
                  "available maps: " + join(map_names()) + ", or a *.yaml file");
}

std::string map_to_use(const CheckpointExportArguments& options, const Manifest& manifest, const JobSpec& job) {
  if (options.map != "auto" && !(options.map.empty() && (options.adapters || is_gguf(options)))) return options.map;
  const std::string source = source_folder(job);
  return source.empty() ? fitting_map(manifest, job) : std::string(map_of_folder(source));
}

void write_text(const fs::path& path, const std::string& text) {
  DiskFile out(path.string());
  out.write(0, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  out.sync_and_close();
}

/// Calls `write` with a folder that takes its name when it is complete.
template <class Write>
auto write_whole_folder(const std::string& output, const Write& write) {
  const fs::path folder = fs::path(output + "/").lexically_normal().parent_path();
  const fs::path part = folder.string() + ".part";
  fs::create_directories(part);
  try {
    auto done = write(part);
    fs::rename(part, folder);
    return done;
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(part, ignored);
    throw;
  }
}

/// Writes the weights, config.json, and the files of the tokenizer.
ExportedWeights write_folder(const CheckpointExportArguments& options, const Manifest& manifest,
                             const std::string& path, const JobSpec& job, const NameMap& map,
                             const std::string& map_name, const ExportOptions& how) {
  const std::string source = source_folder(job);
  const std::string config =
      config_for_export(job, map_name, source, how.dtype == DType::bf16 ? "bfloat16" : "float32");
  return write_whole_folder(options.output, [&](const fs::path& folder) {
    const ExportedWeights done = export_to_folder(manifest, path, map, numbers_of(job), folder.string(), how);
    write_text(folder / "config.json", config);
    // A model that was trained from the beginning has the tokenizer of its data.
    const std::string companions =
        source.empty() && fs::is_directory(job.dataset.tokenizer) ? job.dataset.tokenizer : source;
    if (!companions.empty())
      for (const std::string& file : companion_files(companions))
        fs::copy_file(fs::path(companions) / file, folder / file);
    return done;
  });
}

/// The weights that the checkpoint leaves out; empty if it leaves out none.
std::optional<MappedWeights> open_base(const Manifest& manifest, const std::string& path, const JobSpec& job) {
  if (!manifest.base) return {};
  WeightFiles files(manifest.base->from);
  require_base(files, *manifest.base, path);
  std::vector<MappedWeights::Variable> variables;
  for (const StoredTensor& tensor : manifest.with_base())
    if ((tensor.slot == kWeightSlot || tensor.slot == kStateSlot) && !is_adapter_parameter(job, tensor.name))
      variables.push_back(
          {tensor.name, tensor.slot == kWeightSlot, tensor.shape, packing_of(to_string(storage_of(job, tensor.name)))});
  MappedWeights weights(variables, numbers_of(job), std::move(files),
                        choose_map(job.weights->map, folder_of_weights(manifest.base->from)));
  for (const auto& [name, shape] : manifest.base->tensors)
    if (!weights.has(name))
      throw EnvError(weights.path() + " does not contain " + name + ", which the checkpoint " + path +
                     " takes from there");
  return weights;
}

/// The folder whose tokenizer.json a GGUF file gets. `model`: the exported folder.
std::string tokenizer_for(const CheckpointExportArguments& options, const JobSpec& job, const std::string& model) {
  if (!options.tokenizer.empty()) return options.tokenizer;
  const bool is_in_model = fs::exists(fs::path(model) / "tokenizer.json");
  return is_in_model || job.dataset.tokenizer.empty() ? model : job.dataset.tokenizer;
}

/// Writes a model folder, and from it one file of llama.cpp.
int write_gguf_file(const CheckpointExportArguments& options, const Manifest& manifest, const std::string& path,
                    const JobSpec& job, const NameMap& map, const std::string& map_name, const ExportOptions& how) {
  CheckpointExportArguments of_folder = options;
  of_folder.output = options.output + ".folder";
  const std::string part = options.output + ".part";
  WrittenGguf done;
  try {
    fs::remove_all(of_folder.output);
    const ExportedWeights weights = write_folder(of_folder, manifest, path, job, map, map_name, how);
    const GgufOptions to_gguf{.name = manifest.name,
                              .type = options.dtype == "q8_0"  ? GgufType::q8_0
                                      : options.dtype == "f32" ? GgufType::f32
                                                               : GgufType::f16,
                              .tokenizer = tokenizer_for(options, job, of_folder.output)};
    done = write_gguf(of_folder.output, part, to_gguf);
    fs::rename(part, options.output);
    fs::remove_all(of_folder.output);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(of_folder.output, ignored);
    fs::remove(part, ignored);
    throw;
  }
  std::cout << fmt::format("{}: {} model, {} tensors, {}, of step {}, from {}\n", options.output, done.architecture,
                           done.tensors, format_bytes(done.bytes), with_commas(manifest.step), path);
  for (const std::string& note : done.notes) std::cout << "note: " << note << "\n";
  return kExitDone;
}

bool is_folder(const CheckpointExportArguments& options) {
  return options.adapters || options.output.ends_with('/') || fs::is_directory(options.output);
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

/// Writes a folder in PEFT's format.
int write_adapters(const CheckpointExportArguments& options, const Manifest& manifest, const std::string& path,
                   const JobSpec& job, const NameMap& map) {
  if (!job.adapters.lora)
    throw SpecError({}, "--adapters", "the job of " + path + " has no adapters",
                    "export its weights without --adapters");
  const DType dtype = options.dtype == "bf16" ? DType::bf16 : DType::f32;
  const ExportedAdapters done = write_whole_folder(options.output, [&](const fs::path& folder) {
    return export_adapters(manifest, path, job, map, dtype, folder.string());
  });
  std::cout << fmt::format("{}: adapters of {} modules, {}, of step {}, from {}\n", options.output, done.modules,
                           format_bytes(done.bytes), with_commas(manifest.step), path);
  return kExitDone;
}

/// Throws SpecError unless --adapter names one of several adapters that the files can have.
void require_adapter(const CheckpointExportArguments& options, const JobSpec& job, bool is_merged) {
  const std::vector<std::string>& names = job.adapters.names;
  const bool is_known = std::find(names.begin(), names.end(), options.adapter) != names.end();
  if (!options.adapter.empty() && !is_known)
    throw SpecError({}, "--adapter", "the job has no adapter '" + options.adapter + "'",
                    names.empty() ? "its checkpoints have one, without a name" : "adapters: " + join(names));
  if (is_merged && !names.empty() && options.adapter.empty())
    throw SpecError({}, "--adapter", "a model can contain only one of the adapters " + join(names),
                    "name it with --adapter, or export all with --adapters");
}

/// Throws SpecError for options that contradict each other.
void require_format(const CheckpointExportArguments& options) {
  const bool is_file = is_gguf(options);
  if (is_file && options.adapters)
    throw SpecError({}, "--format", "a gguf file contains a whole model, not only adapters",
                    "without --adapters they are merged into the weights");
  if (is_file && is_folder(options))
    throw SpecError({}, "--output", "gguf is one file, not a folder", "e.g. -o model.gguf");
  if (is_file && options.dtype == "bf16")
    throw SpecError({}, "--dtype", "gguf files are written in f32, f16 or q8_0", "set --dtype f16");
  if (!is_file && (options.dtype == "f16" || options.dtype == "q8_0"))
    throw SpecError({}, "--dtype", options.dtype + " is for gguf files", "add --format gguf, or set --dtype bf16");
}

/// Writes the file, the model folder or the adapters, and prints what was written and what was left out.
int write_export(const CheckpointExportArguments& options) {
  require_format(options);
  require_output(options);
  const std::string path = find_checkpoint(options.what, options.log_dir, true);
  const Manifest manifest = read_manifest(path);
  const JobSpec job = load_run_job(path + "/job.yaml");
  const std::string map_name = map_to_use(options, manifest, job);
  const NameMap map = choose_map(map_name, "");
  require_adapter(options, job, job.adapters.lora && !map_name.empty() && !options.adapters);
  if (options.adapters) return write_adapters(options, manifest, path, job, map);
  ExportOptions how{.dtype = options.dtype == "bf16" ? DType::bf16 : DType::f32,
                    .latest_weights = options.latest_weights,
                    .partial = options.partial};
  if (job.adapters.lora && !map_name.empty()) how.adapter_factor = adapter_factor(*job.adapters.lora);
  how.adapter = options.adapter;
  const std::optional<MappedWeights> base = open_base(manifest, path, job);
  if (base) how.base = &*base;
  if (is_folder(options) || is_gguf(options)) how.shard_bytes = std::llround(options.shard_mb * 1e6);
  if (is_gguf(options)) return write_gguf_file(options, manifest, path, job, map, map_name, how);
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
  command
      ->add_option(
          "CHECKPOINT", options->what,
          "Folder of a checkpoint, a run, a folder of checkpoints, or best: of the newest run with checkpoints")
      ->required();
  command
      ->add_option("-o,--output", options->output,
                   "safetensors or GGUF file to write, or a model folder if the name ends with /")
      ->required();
  add_map(*command, options->map);
  command
      ->add_option("--format", options->format,
                   "safetensors | gguf (llama.cpp, with the tokenizer); default: gguf if the output ends with .gguf")
      ->check(CLI::IsMember({"safetensors", "gguf"}));
  command->add_option("--dtype", options->dtype, "f32 | bf16, default f32; for gguf f32 | f16 | q8_0, default f16")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "q8_0"}));
  command->add_option("--tokenizer", options->tokenizer,
                      "For gguf: folder with tokenizer.json; default: the folder of the weights or of the data set");
  command
      ->add_option(
          "--shard-size", options->shard_mb,
          "For a model folder: maximum MB (10^6 bytes) per file; a larger model becomes several files with an index")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command->add_flag("--partial", options->partial, "Omit tensors that the map does not name");
  command->add_flag("--latest-weights", options->latest_weights,
                    "Export the weights of the last step, not their average (optimizer.average)");
  command->add_flag("--adapters", options->adapters,
                    "Only the adapters, as a folder in PEFT's format; --map is auto by default");
  command->add_option("--adapter", options->adapter, "Which of adapters.names is merged into the weights");
  command->add_flag("--force", options->force, "Replace the output file if it exists");
  add_log_dir(*command, options->log_dir);
  command->footer(
      R"(Writes whole weights and running statistics. The checkpoint is verified first, and the file is written atomically.
A model folder also has config.json, and the generation config and the tokenizer from the folder that the weights came
from, or the tokenizer of the data.
docs/weights.md describes maps.

Examples:
  trainctl checkpoint export 3 -o model.safetensors                      names as in the job
  trainctl checkpoint export best --map auto -o tuned/                   a folder that transformers opens
  trainctl checkpoint export 3 --adapters -o adapter/                     a folder that PEFT opens
  trainctl checkpoint export 3 --map auto --adapter law -o law/           with one of several adapters merged
  trainctl checkpoint export 3 --dtype q8_0 -o model.gguf                a file for llama.cpp
  trainctl checkpoint export 3 --map my_map.yaml --dtype bf16 -o model.safetensors)");
  command->callback([&chosen, options] { chosen = [options] { return write_export(*options); }; });
}

}  // namespace trainctl
