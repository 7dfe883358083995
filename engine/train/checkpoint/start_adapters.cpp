// Loads the adapters that a run starts from: a folder in PEFT's format (adapters.lora.from).
#include "engine/train/checkpoint/start_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/graph/half.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/spec/adapters.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// The layers that have the adapter. `own` is "." and the adapter's name, or "".
std::vector<AdaptedLayer> layers_of(const PlannedJob& job, const std::string& own) {
  std::map<std::string, Shape> shapes;
  for (const VariablePlan& variable : job.plan.variables)
    shapes[job.graph.tensors[variable.tensor].name] = variable.global_shape;
  std::vector<AdaptedLayer> layers;
  for (const auto& [name, shape] : shapes) {
    const std::string end = own + std::string(kAdapterA);
    if (!name.ends_with(end)) continue;
    const std::string layer = name.substr(0, name.size() - end.size());
    layers.push_back(
        {.name = layer, .units = shapes.at(layer + own + std::string(kAdapterB))[0], .features = shape[1]});
  }
  return layers;
}

bool is_set(const Json& config, const char* field) {
  if (!config.contains(field)) return false;
  const Json& value = config[field];
  return !(value.is_null() || value == false || value == "none" || (value.is_structured() && value.empty()));
}

template <class T>
T value_of_field(const Json& config, const char* field, const std::string& path) {
  try {
    return config.at(field).get<T>();
  } catch (const Json::exception&) {
    throw EnvError(fmt::format("{}: {} is missing or has another type", path, field));
  }
}

/// These initial values of PEFT subtract the adapters from the base, so that the adapters do not belong to the base of
/// the job.
void require_own_base(const Json& config, const std::string& path) {
  if (!config.contains("init_lora_weights") || !config["init_lora_weights"].is_string()) return;
  const auto init = config["init_lora_weights"].get<std::string>();
  for (const char* name : {"pissa", "olora", "corda", "loftq", "lora_ga"})
    if (init.starts_with(name))
      throw EnvError(
          fmt::format("{}: init_lora_weights: {} is not supported, because it changes the base; save the "
                      "adapters with path_initial_model_for_weight_conversion of PEFT's save_pretrained",
                      path, init));
}

std::string weights_of_adapters(const std::string& folder) {
  const std::string file = folder + "/" + kPeftWeightsName;
  if (!std::filesystem::exists(file) && std::filesystem::exists(folder + "/adapter_model.bin"))
    throw EnvError(folder +
                   ": contains the adapters only as a PyTorch pickle, adapter_model.bin; save them with PEFT's "
                   "save_pretrained, which writes " +
                   kPeftWeightsName);
  return file;
}

/// Stores values as elements of type `dtype`.
void store_floats(const float* values, int64_t count, DType dtype, std::byte* to) {
  if (dtype == DType::f32)
    std::memcpy(to, values, static_cast<size_t>(count) * sizeof(float));
  else
    floats_to_halves(dtype, values, count, reinterpret_cast<uint16_t*>(to));
}

}  // namespace

StartAdapters::StartAdapters(const PlannedJob& job, const NameMap& map, const std::string& name)
    : own_(name.empty() ? "" : "." + name),
      files_(weights_of_adapters(job.spec.adapters.lora->from + (name.empty() ? "" : "/" + name))),
      rank_(job.spec.adapters.lora->rank) {
  const LoraSpec& lora = *job.spec.adapters.lora;
  const std::string folder = lora.from + (name.empty() ? "" : "/" + name);
  const double factor = read_factor(folder, lora.dora) / adapter_factor(lora);
  const AdapterModules modules(layers_of(job, own_), map, numbers_of(job.spec));
  require_known_modules(modules);
  for (const AdaptedLayer& layer : modules.layers())
    values_.emplace(layer.name, values_of(layer, modules, factor, folder));
}

/// Returns the factor of the products B A of the folder.
double StartAdapters::read_factor(const std::string& folder, bool is_dora) {
  const std::string path = folder + "/" + kPeftConfigName;
  const Json config = Json::parse(read_whole_file(path), nullptr, false);
  if (!config.is_object()) throw EnvError(path + ": is not a JSON object");
  if (const std::string type = value_of_field<std::string>(config, "peft_type", path); type != "LORA")
    throw EnvError(fmt::format("{}: peft_type is {}; only LORA is supported", path, type));
  for (const char* field : {"bias", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias",
                            "layer_replication", "alora_invocation_tokens"})
    if (is_set(config, field))
      throw EnvError(fmt::format("{}: {}: {} is not supported", path, field, config[field].dump()));
  require_own_base(config, path);
  if (is_set(config, "use_dora") != is_dora)
    throw EnvError(fmt::format("{}: use_dora is {}, but adapters.lora.dora is {}", path, !is_dora, is_dora));
  their_rank_ = value_of_field<int64_t>(config, "r", path);
  if (their_rank_ < 1) throw EnvError(fmt::format("{}: r is {}; expected at least 1", path, their_rank_));
  const auto rank = static_cast<double>(their_rank_);
  return value_of_field<double>(config, "lora_alpha", path) / (is_set(config, "use_rslora") ? std::sqrt(rank) : rank);
}

void StartAdapters::require_known_modules(const AdapterModules& modules) const {
  std::set<std::string> known;
  for (const AdaptedLayer& layer : modules.layers())
    for (const std::string& module : layer.modules)
      known.insert({peft_a(module), peft_b(module), peft_magnitude(module)});
  std::vector<std::string> others;
  for (const std::string& name : files_.names())
    if (!known.contains(name)) others.push_back(name);
  if (others.empty()) return;
  const bool has_tables = std::any_of(others.begin(), others.end(), [](const std::string& name) {
    return name.find(".base_layer.") != std::string::npos;
  });
  constexpr size_t kShownNames = 8;
  const size_t more = others.size() > kShownNames ? others.size() - kShownNames : 0;
  others.resize(others.size() - more);
  throw EnvError(fmt::format(
      "{}: adapters.lora.layers names no layer for these tensors:\n  {}{}{}", files_.path(), join(others, "\n  "),
      more > 0 ? fmt::format("\n  and {} more", more) : "",
      has_tables ? "\n  PEFT has saved weights of the base; save the adapter with save_embedding_layers=False" : ""));
}

std::vector<float> StartAdapters::read(const std::string& name, const Shape& shape) const {
  const SafetensorsEntry* const entry = files_.find(name);
  if (entry == nullptr) throw EnvError(fmt::format("{}: {} is missing", files_.path(), name));
  if (entry->shape != shape)
    throw EnvError(
        fmt::format("{}: {} is {}, expected {}", files_.path(), name, to_string(entry->shape), to_string(shape)));
  std::vector<float> values(static_cast<size_t>(num_elements(shape)));
  files_.read_f32(name, 0, num_elements(shape), values.data());
  return values;
}

/// Computes A, B and the magnitudes of one adapted layer from the adapters of all modules that its weight combines.
/// Modules with different A's get separate ranks.
StartAdapters::Values StartAdapters::values_of(const AdaptedLayer& layer, const AdapterModules& modules, double factor,
                                               const std::string& path) const {
  std::vector<std::vector<float>> distinct;  // their A's
  std::vector<std::optional<size_t>> a_of(layer.modules.size());
  std::vector<std::vector<float>> b_of(layer.modules.size()), magnitudes_of(layer.modules.size());
  for (size_t m = 0; m < layer.modules.size(); ++m) {
    const std::string& module = layer.modules[m];
    if (files_.find(peft_a(module)) == nullptr && files_.find(peft_b(module)) == nullptr) continue;
    std::vector<float> a = read(peft_a(module), {their_rank_, layer.features});
    const auto same = std::find(distinct.begin(), distinct.end(), a);
    a_of[m] = static_cast<size_t>(same - distinct.begin());
    if (same == distinct.end()) distinct.push_back(std::move(a));
    b_of[m] = read(peft_b(module), {modules.units(module), their_rank_});
    if (files_.find(peft_magnitude(module)) != nullptr)
      magnitudes_of[m] = read(peft_magnitude(module), {modules.units(module)});
  }
  Values values{.filled = static_cast<int64_t>(distinct.size()) * their_rank_};
  if (values.filled > rank_)
    throw EnvError(
        fmt::format("{}: {} needs {} ranks ({} different A's of {} ranks), but adapters.lora.rank is {}; "
                    "set rank to {} and scale alpha with it",
                    path, layer.name, values.filled, distinct.size(), their_rank_, rank_, values.filled));
  values.a.resize(static_cast<size_t>(values.filled * layer.features));
  for (int64_t r = 0; r < values.filled; ++r)
    for (int64_t f = 0; f < layer.features; ++f) {
      const std::vector<float>& a = distinct[static_cast<size_t>(r / their_rank_)];
      values.a[static_cast<size_t>(r * layer.features + f)] =
          a[static_cast<size_t>(r % their_rank_ * layer.features + layer.columns[static_cast<size_t>(f)])];
    }
  values.b.resize(static_cast<size_t>(layer.units * rank_));
  values.magnitudes.resize(static_cast<size_t>(layer.units));
  for (int64_t u = 0; u < layer.units; ++u)
    if (const auto& [module, row] = layer.rows[static_cast<size_t>(u)]; !magnitudes_of[module].empty())
      values.magnitudes[static_cast<size_t>(u)] = magnitudes_of[module][static_cast<size_t>(row)];
  for (int64_t u = 0; u < layer.units; ++u) {
    const AdaptedLayer::Row& row = layer.rows[static_cast<size_t>(u)];
    if (!a_of[row.module]) continue;
    const int64_t first = static_cast<int64_t>(*a_of[row.module]) * their_rank_;
    for (int64_t r = 0; r < their_rank_; ++r)
      values.b[static_cast<size_t>(u * rank_ + first + r)] =
          static_cast<float>(factor * b_of[row.module][static_cast<size_t>(row.row * their_rank_ + r)]);
  }
  return values;
}

void StartAdapters::load_magnitudes(const StoredRange& range, Executor& executor) const {
  const std::string_view name = range.variable->name;
  const Values& values = values_.at(std::string(name.substr(0, name.size() - own_.size() - kAdapterMagnitude.size())));
  std::byte element[sizeof(float)];
  const int64_t width = byte_size(range.dtype);
  for (int64_t i = 0; i < range.count; ++i)
    if (const auto& value = values.magnitudes[static_cast<size_t>(range.variable->offset[0] + range.first + i)]) {
      store_floats(&*value, 1, range.dtype, element);
      executor.write(range.offset + i * width, element, width);
    }
}

void StartAdapters::load(const Program& program, Executor& executor) const {
  std::vector<std::byte> buffer;
  for (const StoredRange& range : stored_ranges(program)) {
    if (range.slot != kWeightSlot || range.count == 0) continue;
    const std::string_view name = range.variable->name;
    if (name.ends_with(own_ + std::string(kAdapterMagnitude))) load_magnitudes(range, executor);
    const bool is_a = name.ends_with(own_ + std::string(kAdapterA));
    if (!is_a && !name.ends_with(own_ + std::string(kAdapterB))) continue;
    const Values& values = values_.at(std::string(name.substr(0, name.size() - own_.size() - kAdapterA.size())));
    const std::vector<float>& from = is_a ? values.a : values.b;
    const int64_t width = byte_size(range.dtype), columns = range.variable->global_shape[1];
    int64_t to = range.offset;
    for (const Box& box : boxes_of(*range.variable, range.first, range.count)) {
      const int64_t rows = is_a ? std::clamp<int64_t>(values.filled - box.offset[0], 0, box.shape[0]) : box.shape[0];
      buffer.resize(static_cast<size_t>(rows * box.shape[1] * width));  // the other rows keep their initial values
      for (int64_t row = 0; row < rows; ++row)
        store_floats(&from[static_cast<size_t>((box.offset[0] + row) * columns + box.offset[1])], box.shape[1],
                     range.dtype, &buffer[static_cast<size_t>(row * box.shape[1] * width)]);
      if (!buffer.empty()) executor.write(to, buffer.data(), static_cast<int64_t>(buffer.size()));
      to += num_elements(box.shape) * width;
    }
  }
}

}  // namespace trainctl
