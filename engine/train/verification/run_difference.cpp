// Finds where two runs diverge: first step, layer and tensor, from losses, fingerprints and printed tensors of both.
#include "engine/train/verification/run_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <tuple>

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/values.h"
#include "engine/train/data/sources/npy_header.h"
#include "engine/train/files/fingerprint.h"
#include "engine/train/files/input_file.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFingerprints = "/fingerprints.jsonl";
constexpr double kNoDistance = std::numeric_limits<double>::infinity();

/// Layers of a run's network, in their order; empty if the job cannot be read.
std::vector<std::string> layers_of_run(const std::string& run, std::vector<std::string>& notes) {
  std::vector<std::string> layers;
  try {
    for (const LayerSpec& layer : load_run_job(run + "/job.yaml").network) layers.push_back(layer.name);
  } catch (const std::exception& error) {
    notes.push_back(
        fmt::format("{}/job.yaml cannot be read, so tensors are in alphabetical order: {}", run, error.what()));
  }
  return layers;
}

size_t place_of(const std::string& tensor, const std::vector<std::string>& layers) {
  const std::string layer = layer_of_tensor(tensor, layers);
  return static_cast<size_t>(std::find(layers.begin(), layers.end(), layer) - layers.begin());
}

/// A step computes outputs, then gradients, then optimizer states and weights. Before the first step, all states are
/// zeros, which differ only if the weights have other sizes.
int order_of_kind(const std::string& kind, int64_t step) {
  return kind == "output" ? 0 : kind == "gradient" ? 1 : kind != "weight" ? 2 : step == 0 ? 1 : 3;
}

void sort_distances(std::vector<TensorDistance>& distances, const std::vector<std::string>& layers) {
  std::map<std::string, size_t> places;
  for (const TensorDistance& each : distances) places.try_emplace(each.name, place_of(each.name, layers));
  std::stable_sort(distances.begin(), distances.end(), [&](const TensorDistance& a, const TensorDistance& b) {
    const auto key = [&](const TensorDistance& each) {
      return std::tuple(each.step, order_of_kind(each.kind, each.step), places.at(each.name), each.name);
    };
    return key(a) < key(b);
  });
}

bool exceeds(double distance, double tolerance) { return tolerance > 0 ? !(distance <= tolerance) : distance != 0; }

/// The loss of each logged step; a repeated step counts with its last line.
std::map<int64_t, double> losses_of(const std::string& run) {
  std::map<int64_t, double> losses;
  std::ifstream file(run + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || json.contains("kind") || !json.contains("run_step")) continue;
    if (const auto loss = json.find("loss"); loss != json.end())
      losses[field_or(json, "run_step", int64_t{0})] =
          loss->is_number() ? loss->get<double>() : std::numeric_limits<double>::quiet_NaN();
  }
  return losses;
}

void compare_run_losses(const std::string& a, const std::string& b, double tolerance, RunDifference& found) {
  const std::map<int64_t, double> left = losses_of(a), right = losses_of(b);
  for (const auto& [step, loss] : left) {
    const auto other = right.find(step);
    if (other == right.end()) continue;
    found.loss_steps.push_back(step);
    const bool both_nan = std::isnan(loss) && std::isnan(other->second);
    const double distance = both_nan ? 0
                            : loss == other->second
                                ? 0
                                : std::abs(loss - other->second) / std::max(std::abs(other->second), 1e-30);
    if (found.first_loss || !exceeds(distance, tolerance)) continue;
    found.first_loss = step;
    found.first_loss_distance = distance;
  }
}

/// Adds the distance of each fingerprint that the runs have in common.
void compare_fingerprints(const std::string& a, const std::string& b, double tolerance, RunDifference& found) {
  for (const std::string& run : {a, b})
    if (!fs::exists(run + kFingerprints)) {
      found.notes.push_back(run + " has no fingerprints; run it with train.fingerprints=N");
      return;
    }
  const auto left = read_fingerprints(a + kFingerprints), right = read_fingerprints(b + kFingerprints);
  for (const auto& [step, tensors] : left) {
    const auto other = right.find(step);
    if (other == right.end()) continue;
    found.steps.push_back(step);
    std::set<std::string> names;
    for (const auto& [name, print] : tensors) names.insert(name);
    for (const auto& [name, print] : other->second) names.insert(name);
    for (const std::string& name : names) {
      const size_t slash = name.find('/');
      TensorDistance one{.step = step, .kind = name.substr(0, slash), .name = name.substr(slash + 1)};
      const auto in_a = tensors.find(name), in_b = other->second.find(name);
      const bool in_both = in_a != tensors.end() && in_b != other->second.end();
      one.distance = in_both ? relative_distance(in_a->second, in_b->second) : kNoDistance;
      const bool has_same = in_both && same_bits(in_a->second, in_b->second);
      one.differs = tolerance > 0 ? exceeds(one.distance, tolerance) : !has_same;
      found.distances.push_back(std::move(one));
    }
  }
  if (found.steps.empty())
    found.notes.emplace_back("the runs have fingerprints of no step in common; give both the same train.fingerprints");
}

struct PrintedTensor {
  Shape shape;
  std::vector<double> values;
};

PrintedTensor read_npy(const std::string& path) {
  const std::string text = read_whole_file(path);
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  const NpyHeader header = parse_npy_header(bytes, static_cast<int64_t>(bytes.size()), path);
  if (header.stored != StoredElement::f32 && header.stored != StoredElement::i32)
    throw EnvError(path +
                   " is not a file that trainctl wrote for a printed tensor: its values are neither f32 nor i32");
  PrintedTensor tensor{header.shape, {}};
  const auto count = static_cast<size_t>(num_elements(header.shape));
  const auto at = bytes.subspan(static_cast<size_t>(header.data_at), 4 * count);
  for (size_t i = 0; i < count; ++i)
    tensor.values.push_back(
        value_of(header.stored == StoredElement::f32 ? StoredType::f32 : StoredType::i32, &at[4 * i]));
  return tensor;
}

double distance_of(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return kNoDistance;
  double squares = 0, all_a = 0, all_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += (a[i] - b[i]) * (a[i] - b[i]);
    all_a += a[i] * a[i];
    all_b += b[i] * b[i];
  }
  if (squares == 0) return 0;
  const double distance = std::sqrt(squares / std::max({all_a, all_b, 1e-300}));
  return std::isfinite(distance) ? distance : kNoDistance;
}

/// Folders tensors/step.N of a run, by N.
std::map<int64_t, fs::path> printed_steps(const std::string& run) {
  std::map<int64_t, fs::path> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run + "/tensors", ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step.") && name.find_first_not_of("0123456789", 5) == std::string::npos && name.size() > 5)
      steps[std::stoll(name.substr(5))] = entry.path();
  }
  return steps;
}

std::set<std::string> printed_names(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".npy") names.insert(entry.path().stem());
  return names;
}

void compare_printed(const std::string& a, const std::string& b, double tolerance, RunDifference& found) {
  const auto left = printed_steps(a), right = printed_steps(b);
  for (const auto& [step, folder] : left) {
    const auto other = right.find(step);
    if (other == right.end()) continue;
    found.steps.push_back(step);
    for (const auto& entry : fs::directory_iterator(folder)) {
      const fs::path twin = other->second / entry.path().filename();
      if (entry.path().extension() != ".npy" || !fs::exists(twin)) continue;
      const double distance = distance_of(read_npy(entry.path()).values, read_npy(twin).values);
      found.distances.push_back({step, "output", entry.path().stem(), distance, exceeds(distance, tolerance)});
    }
  }
}

std::vector<double> read_stored(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  if (!has_values(entry.type))
    throw EnvError(fmt::format("{}: {} has the type {}, which cannot be compared", file.path(), entry.name,
                               to_string(entry.type)));
  std::vector<uint8_t> bytes(static_cast<size_t>(entry.bytes()));
  file.read(entry, 0, bytes);
  std::vector<double> values;
  const auto size = static_cast<size_t>(bits_of(entry.type) / 8);
  for (size_t at = 0; at < bytes.size(); at += size) values.push_back(value_of(entry.type, bytes.data() + at));
  return values;
}

Json distance_json(double distance) { return std::isfinite(distance) ? Json(distance) : Json(nullptr); }

Json tensor_json(const TensorDistance& each) {
  return {{"step", each.step},
          {"kind", each.kind},
          {"tensor", each.name},
          {"distance", distance_json(each.distance)},
          {"differs", each.differs}};
}

}  // namespace

std::string layer_of_tensor(const std::string& tensor, const std::vector<std::string>& layers) {
  for (std::string name = tensor;;) {
    if (std::find(layers.begin(), layers.end(), name) != layers.end()) return name;
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) return tensor.substr(0, tensor.rfind('.'));
    name.resize(dot);
  }
}

const TensorDistance* RunDifference::first() const {
  const auto found =
      std::find_if(distances.begin(), distances.end(), [](const TensorDistance& each) { return each.differs; });
  return found == distances.end() ? nullptr : &*found;
}

RunDifference compare_run_folders(const std::string& a, const std::string& b, double tolerance) {
  RunDifference found;
  compare_run_losses(a, b, tolerance, found);
  compare_fingerprints(a, b, tolerance, found);
  compare_printed(a, b, tolerance, found);
  std::sort(found.steps.begin(), found.steps.end());
  found.steps.erase(std::unique(found.steps.begin(), found.steps.end()), found.steps.end());
  sort_distances(found.distances, layers_of_run(a, found.notes));
  return found;
}

RunDifference compare_with_file(const std::string& run, const std::string& safetensors, int64_t step,
                                double tolerance) {
  RunDifference found;
  const auto steps = printed_steps(run);
  if (steps.empty()) throw EnvError(run + " has no printed tensors; run it with 'print={tensors: [...], format: npy}'");
  const auto printed = step == 0 ? steps.begin() : steps.find(step);
  if (printed == steps.end()) throw EnvError(fmt::format("{} has printed no tensors in step {}", run, step));
  found.steps.push_back(printed->first);
  const SafetensorsFile file(safetensors);
  std::set<std::string> in_file;
  for (const SafetensorsEntry& entry : file.header().entries) {
    in_file.insert(entry.name);
    const fs::path path = printed->second / (entry.name + ".npy");
    if (!fs::exists(path)) {
      found.notes.push_back("the run has not printed " + entry.name);
      continue;
    }
    const PrintedTensor own = read_npy(path);
    const double distance = distance_of(own.values, read_stored(file, entry));
    if (own.shape != entry.shape)
      found.notes.push_back(
          fmt::format("{} is {} in the run, {} in the file", entry.name, to_string(own.shape), to_string(entry.shape)));
    found.distances.push_back({printed->first, "output", entry.name, distance, exceeds(distance, tolerance)});
  }
  for (const std::string& name : printed_names(printed->second))
    if (!in_file.contains(name)) found.notes.push_back("the file has no " + name + ", which the run has printed");
  if (found.distances.empty())
    throw EnvError(safetensors + " has no tensor with the name of a printed tensor of " + run);
  sort_distances(found.distances, layers_of_run(run, found.notes));
  return found;
}

Json to_json(const RunDifference& found) {
  Json json = {{"equal", found.is_equal()}, {"steps", found.steps}, {"logged_steps", found.loss_steps.size()}};
  if (found.first_loss)
    json["first_loss"] = {{"step", *found.first_loss}, {"distance", distance_json(found.first_loss_distance)}};
  if (const TensorDistance* first = found.first()) json["first"] = tensor_json(*first);
  json["tensors"] = Json::array();
  for (const TensorDistance& each : found.distances)
    if (each.differs) json["tensors"].push_back(tensor_json(each));
  json["notes"] = found.notes;
  return json;
}

}  // namespace trainctl
