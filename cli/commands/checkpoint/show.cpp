// trainctl checkpoint show: prints the contents of a checkpoint or a safetensors file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/checkpoint/checkpoint_commands.h"
#include "cli/commands/checkpoint/facts.h"
#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/render/certificate_text.h"
#include "cli/run/saves/certificates.h"
#include "cli/text/table.h"
#include "engine/base/error.h"
#include "engine/base/measures.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

struct CheckpointShowArguments {
  std::string what;
  std::string log_dir = LaunchSpec{}.log_dir;
  std::string tensors = "*";
  bool pieces = false;
  bool json = false;
};

int64_t bytes_of(const StoredTensor& tensor) { return num_elements(tensor.shape) * byte_size(tensor.dtype); }

/// "[256:512, 0:784]".
std::string box_text(const Box& box) {
  std::vector<std::string> dims;
  for (size_t d = 0; d < box.shape.size(); ++d)
    dims.push_back(fmt::format("{}:{}", box.offset[d], box.offset[d] + box.shape[d]));
  return "[" + join(dims) + "]";
}

std::string head_of(const std::string& path, const Manifest& m) {
  std::string text = fmt::format("{}\n  job {}, run {}, attempt {}, written {} by trainctl {}\n", path,
                                 printable(m.name), m.run, m.attempt, printable(m.written), printable(m.trainctl));
  text += fmt::format("  step {}, {} epochs{}, {} samples, seed {}\n", with_commas(m.step), m.epoch - 1,
                      m.epoch_step == 0 ? "" : fmt::format(" and {} steps", with_commas(m.epoch_step)),
                      with_commas(m.samples), m.seed);
  if (const auto loss = epoch_loss(m)) text += fmt::format("  mean loss of the epoch so far {}\n", format_loss(*loss));
  for (const auto& [name, value] : m.metrics)
    text += fmt::format("  {} {} at the last validation\n", printable(name), format_loss(value));
  if (m.base)
    text += fmt::format("  without its base: {} frozen tensors are in {}, fingerprint {}\n",
                        with_commas(static_cast<int64_t>(m.base->tensors.size())), printable(m.base->from),
                        m.base->fingerprint);
  if (const auto certificate = certificate_beside(path)) text += "  " + certificate_line(*certificate) + "\n";
  return text + "\n";
}

std::string files_of(const Manifest& m) {
  Table table({"file", ">bytes", "xxh128"});
  for (const StoredFile& file : m.files) table.add({printable(file.name), with_commas(file.bytes), file.xxh128});
  return table.str();
}

std::string tensors_of(const Manifest& m, const CheckpointShowArguments& options) {
  Table table({"tensor", "slot", "type", "shape", ">bytes", ">pieces"});
  std::map<std::string, int64_t> slots;
  for (const StoredTensor& tensor : m.tensors) {
    if (!glob_match(options.tensors, tensor.name)) continue;
    slots[tensor.slot] += bytes_of(tensor);
    table.add({printable(tensor.name), printable(tensor.slot), std::string(to_string(stored_type(tensor.dtype))),
               to_string(tensor.shape), with_commas(bytes_of(tensor)), std::to_string(tensor.pieces.size())});
    if (!options.pieces) continue;
    for (const StoredPiece& piece : tensor.pieces) table.add_line(box_text(piece.box) + " in " + printable(piece.file));
  }
  if (table.empty())
    throw SpecError({}, "--tensors", "no tensor matches '" + options.tensors + "'", "use a pattern such as h.*.weight");
  std::vector<std::string> sums;
  for (const auto& [slot, bytes] : slots) sums.push_back(printable(slot) + " " + format_bytes(bytes));
  return table.str() + "  " + join(sums) + "\n";
}

Json json_of(const std::string& path, const Manifest& m, const CheckpointShowArguments& options) {
  Json json = {{"path", path}};
  put_facts(json, m);
  if (const auto certificate = certificate_beside(path)) json["certificate"] = to_json(*certificate);
  json["files"] = Json::array();
  for (const StoredFile& file : m.files)
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh128", file.xxh128}});
  json["tensors"] = Json::array();
  for (const StoredTensor& tensor : m.tensors) {
    if (!glob_match(options.tensors, tensor.name)) continue;
    Json pieces = Json::array();
    for (const StoredPiece& piece : tensor.pieces)
      pieces.push_back({{"file", piece.file}, {"offset", piece.box.offset}, {"shape", piece.box.shape}});
    json["tensors"].push_back({{"name", tensor.name},
                               {"slot", tensor.slot},
                               {"dtype", to_string(stored_type(tensor.dtype))},
                               {"shape", tensor.shape},
                               {"bytes", bytes_of(tensor)},
                               {"pieces", std::move(pieces)}});
  }
  return json;
}

int show_file(const CheckpointShowArguments& options) {
  const SafetensorsFile file(options.what);
  Json json = {{"path", options.what}, {"metadata", file.header().metadata}, {"tensors", Json::array()}};
  Table table({"tensor", "type", "shape", ">bytes"});
  for (const SafetensorsEntry& entry : file.header().entries) {
    if (!glob_match(options.tensors, entry.name)) continue;
    const std::string type(to_string(entry.type));
    table.add({printable(entry.name), type, to_string(entry.shape), with_commas(entry.bytes())});
    json["tensors"].push_back(
        {{"name", entry.name}, {"dtype", type}, {"shape", entry.shape}, {"bytes", entry.bytes()}});
  }
  if (options.json) {
    std::cout << json.dump(2) << "\n";
    return kExitDone;
  }
  for (const auto& [key, value] : file.header().metadata)
    std::cout << "  " << printable(key) << ": " << printable(value) << "\n";
  std::cout << table.str();
  return kExitDone;
}

int show_checkpoint(const CheckpointShowArguments& options) {
  if (is_safetensors(options.what)) return show_file(options);
  const std::string path = find_checkpoint(options.what, options.log_dir);
  const Manifest manifest = read_manifest(path);
  if (options.json)
    std::cout << json_of(path, manifest, options).dump(2) << "\n";
  else
    std::cout << head_of(path, manifest) << files_of(manifest) << "\n" << tensors_of(manifest, options);
  return kExitDone;
}

}  // namespace

void add_checkpoint_show(CLI::App& checkpoint, Action& chosen) {
  auto options = std::make_shared<CheckpointShowArguments>();
  auto* command = checkpoint.add_subcommand("show", "Show the step, files and tensors of a checkpoint");
  command->add_option(
      "CHECKPOINT", options->what,
      "Folder of a checkpoint, a run, a folder of checkpoints, or a .safetensors file; default: latest");
  command->add_option("--tensors", options->tensors, "Only tensors that match this pattern, e.g. h.*.weight")
      ->capture_default_str();
  command->add_flag("--pieces", options->pieces, "Show which part of each tensor is in which file");
  command->add_flag("--json", options->json, "Print the contents as a JSON object");
  add_log_dir(*command, options->log_dir);
  command->footer(R"(Examples:
  trainctl checkpoint show
  trainctl checkpoint show log_output/3/checkpoints/step_00000120 --pieces
  trainctl checkpoint show 3 --json | jq '.tensors[] | {name, slot, shape}'
  trainctl checkpoint show model.safetensors)");
  command->callback([&chosen, options] { chosen = [options] { return show_checkpoint(*options); }; });
}

}  // namespace trainctl
