// trainctl checkpoint diff: compares the tensors of two checkpoints.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/checkpoint/checkpoint_commands.h"
#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/text/table.h"
#include "engine/base/error.h"
#include "engine/base/measures.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"
#include "engine/train/checkpoint/compare.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kExitDifferent = 1;  ///< same as the exit code of cmp and diff

struct CheckpointDiffArguments {
  std::string a, b;
  std::string log_dir = LaunchSpec{}.log_dir;
  bool weights = false;
  bool json = false;
};

struct Side {
  std::string path;
  int64_t step = -1;  ///< -1: a file, which has no step
};

Side find_side(const std::string& word, const std::string& log_dir) {
  if (is_safetensors(word)) return {word, -1};
  const std::string path = find_checkpoint(word, log_dir);
  return {path, read_manifest(path).step};
}

std::string type_text(const TensorDifference& one) {
  const std::string a(to_string(one.type_a));
  return one.type_a == one.type_b ? a : a + ", " + std::string(to_string(one.type_b));
}

std::string real(double value) {
  return std::isfinite(value) ? fmt::format("{:.3g}", value) : std::string(not_finite_name(value));
}

Json json_real(double value) { return std::isfinite(value) ? Json(value) : Json(not_finite_name(value)); }

std::string text_of(const Side& side) {
  return side.path + (side.step < 0 ? "" : fmt::format(" (step {})", with_commas(side.step)));
}

std::string report(const Side& a, const Side& b, const Comparison& found) {
  std::string text = "A " + text_of(a) + "\nB " + text_of(b) + "\n";
  for (const NamedTensor& one : found.missing) text += "  only in A: " + printable(one.key) + "\n";
  for (const NamedTensor& one : found.extra) text += "  only in B: " + printable(one.key) + "\n";
  for (const auto& [left, right] : found.other_shape)
    text += fmt::format("  {} has shape {} in A, {} in B\n", printable(left.key), to_string(left.shape),
                        to_string(right.shape));
  Table table({"tensor", "type", ">elements", ">differing", ">largest |a-b|", ">relative", ">at"});
  for (const TensorDifference& one : found.compared)
    if (one.is_different())
      table.add({printable(one.key), type_text(one), with_commas(one.elements), with_commas(one.differing),
                 real(one.max_abs), real(one.max_rel), one.at < 0 ? "" : to_string(one.place())});
  if (!table.empty()) text += table.str();
  const size_t equal = found.num_equal();
  return text + fmt::format("{} of {} tensors are equal\n", equal, found.num_tensors());
}

/// The output of --json.
Json json_of(const Side& a, const Side& b, const Comparison& found) {
  const auto keys = [](const std::vector<NamedTensor>& tensors) {
    Json list = Json::array();
    for (const NamedTensor& one : tensors) list.push_back(one.key);
    return list;
  };
  Json json = {{"a", a.path}, {"b", b.path}, {"equal", found.equal()}};
  if (a.step >= 0) json["step_a"] = a.step;
  if (b.step >= 0) json["step_b"] = b.step;
  json["only_a"] = keys(found.missing);
  json["only_b"] = keys(found.extra);
  json["other_shape"] = Json::array();
  for (const auto& [left, right] : found.other_shape)
    json["other_shape"].push_back({{"tensor", left.key}, {"shape_a", left.shape}, {"shape_b", right.shape}});
  json["tensors"] = Json::array();
  for (const TensorDifference& one : found.compared)
    json["tensors"].push_back({{"tensor", one.key},
                               {"dtype_a", to_string(one.type_a)},
                               {"dtype_b", to_string(one.type_b)},
                               {"elements", one.elements},
                               {"differing", one.differing},
                               {"max_abs", json_real(one.max_abs)},
                               {"max_rel", json_real(one.max_rel)}});
  return json;
}

int diff(const CheckpointDiffArguments& options) {
  const Side a = find_side(options.a, options.log_dir), b = find_side(options.b, options.log_dir);
  const auto left = open_tensors(a.path), right = open_tensors(b.path);
  const Comparison found = compare(
      *left, *right, options.weights ? std::vector<std::string>{"weight", "state"} : std::vector<std::string>{});
  if (options.json)
    std::cout << json_of(a, b, found).dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  else
    std::cout << report(a, b, found);
  return found.equal() ? kExitDone : kExitDifferent;
}

}  // namespace

void add_checkpoint_diff(CLI::App& checkpoint, Action& chosen) {
  auto options = std::make_shared<CheckpointDiffArguments>();
  auto* command = checkpoint.add_subcommand("diff", "Compare the tensors of two checkpoints; exit 1 if they differ");
  const std::string what = "Folder of a checkpoint, a run, a folder of checkpoints, or a .safetensors file";
  command->add_option("A", options->a, what)->required();
  command->add_option("B", options->b, what)->required();
  command->add_flag("--weights", options->weights, "Compare only weights and running statistics");
  command->add_flag("--json", options->json, "Print the comparison as a JSON object");
  add_log_dir(*command, options->log_dir);
  command->footer(
      R"(Compares whole tensors, however each side splits them into files. Tensors of the same type are compared bit by bit,
tensors of different types by value.

Examples:
  trainctl checkpoint diff 3 4
  trainctl checkpoint diff 3 model.safetensors --weights
  trainctl checkpoint diff log_output/3/checkpoints/step_00000100 log_output/3/checkpoints/step_00000120)");
  command->callback([&chosen, options] { chosen = [options] { return diff(*options); }; });
}

}  // namespace trainctl
