// Exports the adapters of a checkpoint as a folder that PEFT opens.
#include "engine/train/checkpoint/export_adapters.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/graph/bf16.h"
#include "engine/ops/optimizer_def.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/spec/adapters.h"
#include "engine/train/checkpoint/adapter_modules.h"
#include "engine/train/checkpoint/piece_reader.h"
#include "engine/train/checkpoint/tiling.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

/// A parameter that the job trains in addition to its adapters; "" if there is none.
std::string other_trained(const Manifest& manifest, const JobSpec& job) {
  for (const StoredTensor& tensor : manifest.tensors)
    if (tensor.slot == kWeightSlot && !is_frozen(job, tensor.name) && !is_adapter_parameter(tensor.name))
      return tensor.name;
  return "";
}

/// The layers that have the adapter. `own` is "." and the adapter's name, or "".
std::vector<AdaptedLayer> adapted_layers(const Manifest& manifest, const std::string& own) {
  std::vector<AdaptedLayer> layers;
  for (const StoredTensor& a : manifest.tensors) {
    const std::string end = own + std::string(kAdapterA);
    if (a.slot != kWeightSlot || !a.name.ends_with(end)) continue;
    const std::string layer = a.name.substr(0, a.name.size() - end.size());
    const StoredTensor* const b = manifest.find(layer + own + std::string(kAdapterB), kWeightSlot);
    if (b == nullptr)
      throw EnvError(fmt::format("the checkpoint has {}, but not {}{}{}", a.name, layer, own, kAdapterB));
    layers.push_back({.name = layer, .units = b->shape[0], .features = a.shape[1]});
  }
  return layers;
}

using Owners = std::map<std::string, std::vector<const AdaptedLayer*>>;

/// Finds the adapted layers of each module. A module has a single A. If several layers with adapters of their own are
/// rows of one module (Phi-3's gate and up), the exported adapter has the ranks of all of them, and B has zeros where a
/// row belongs to another layer.
Owners owners_of(const AdapterModules& modules) {
  Owners owners;
  for (const AdaptedLayer& layer : modules.layers())
    for (const std::string& module : std::set<std::string>(layer.modules.begin(), layer.modules.end()))
      owners[module].push_back(&layer);
  return owners;
}

class AdapterFile {
 public:
  AdapterFile(const Manifest& manifest, const std::string& directory, const AdapterModules& modules,
              const LoraSpec& lora, std::string own, DType dtype, const std::string& path, Disk& disk)
      : reader_(manifest, directory),
        own_(std::move(own)),
        rank_(lora.rank),
        is_dora_(lora.dora),
        dtype_(dtype),
        writer_(path, entries_of(modules), {{"format", "pt"}}, disk) {}

  void write(const std::string& module, const std::vector<const AdaptedLayer*>& owners, int64_t units) {
    const int64_t features = owners[0]->features, ranks = rank_ * static_cast<int64_t>(owners.size());
    std::vector<float> their_a(static_cast<size_t>(ranks * features)), their_b(static_cast<size_t>(units * ranks));
    std::vector<float> their_m(static_cast<size_t>(is_dora_ ? units : 0));
    int64_t first = 0;  // rank of the owner
    for (const AdaptedLayer* const layer : owners) {
      const std::vector<float> a = read(layer->name + own_ + std::string(kAdapterA), {rank_, features});
      const std::vector<float> b = read(layer->name + own_ + std::string(kAdapterB), {layer->units, rank_});
      std::vector<float> m;
      if (is_dora_) m = read(layer->name + own_ + std::string(kAdapterMagnitude), {layer->units});
      for (int64_t r = 0; r < rank_; ++r)
        for (int64_t f = 0; f < features; ++f)
          their_a[at(first + r, layer->columns[static_cast<size_t>(f)], features)] = a[at(r, f, features)];
      for (int64_t u = 0; u < layer->units; ++u) {
        const AdaptedLayer::Row& row = layer->rows[static_cast<size_t>(u)];
        if (layer->modules[row.module] != module) continue;
        if (is_dora_) their_m[static_cast<size_t>(row.row)] = m[static_cast<size_t>(u)];
        std::memcpy(&their_b[at(row.row, first, ranks)], &b[at(u, 0, rank_)],
                    static_cast<size_t>(rank_) * sizeof(float));
      }
      first += rank_;
    }
    put(peft_a(module), their_a);
    put(peft_b(module), their_b);
    if (is_dora_) put(peft_magnitude(module), their_m);
  }

  int64_t finish() { return writer_.finish().bytes; }

 private:
  static size_t at(int64_t row, int64_t column, int64_t columns) { return static_cast<size_t>(row * columns + column); }

  std::vector<SafetensorsEntry> entries_of(const AdapterModules& modules) const {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [module, owners] : owners_of(modules)) {
      const int64_t ranks = rank_ * static_cast<int64_t>(owners.size()), units = modules.units(module);
      entries.push_back({.name = peft_a(module), .type = stored_type(dtype_), .shape = {ranks, owners[0]->features}});
      entries.push_back({.name = peft_b(module), .type = stored_type(dtype_), .shape = {units, ranks}});
      if (is_dora_) entries.push_back({.name = peft_magnitude(module), .type = stored_type(dtype_), .shape = {units}});
    }
    return entries;
  }

  std::vector<float> read(const std::string& name, const Shape& shape) {
    std::vector<float> values(static_cast<size_t>(num_elements(shape)));
    const bool averaged = reader_.manifest().find(name, kAverageSlot) != nullptr;
    reader_.read(name, averaged ? kAverageSlot : kWeightSlot, whole_box(shape), DType::f32, values.data());
    return values;
  }

  void put(const std::string& name, const std::vector<float>& values) {
    if (dtype_ == DType::f32) return put_bytes(name, values);
    std::vector<uint16_t> rounded;
    for (const float value : values) rounded.push_back(to_bf16(value));
    put_bytes(name, rounded);
  }

  template <class T>
  void put_bytes(const std::string& name, const std::vector<T>& values) {
    writer_.write(writer_.index_of(name), 0,
                  {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)});
  }

  PieceReader reader_;
  std::string own_;  ///< "." and the adapter's name, or ""
  int64_t rank_;
  bool is_dora_;
  DType dtype_;
  SafetensorsWriter writer_;
};

/// The adapter_config.json of the exported adapters.
std::string config_text(const JobSpec& job, const AdapterModules& modules) {
  const LoraSpec& lora = *job.adapters.lora;
  std::set<std::string> names;
  auto ranks = nlohmann::ordered_json::object(), alphas = nlohmann::ordered_json::object();
  bool is_transposed = false;
  for (const auto& [module, owners] : owners_of(modules)) {
    names.insert(module);
    is_transposed = is_transposed || owners[0]->is_transposed;
    if (owners.size() == 1) continue;
    const auto count = static_cast<double>(owners.size());  // PEFT divides alpha by the larger rank, so alpha grows
                                                            // with it and the factor of the product stays the same.
    ranks[module] = lora.rank * static_cast<int64_t>(owners.size());
    alphas[module] = lora.alpha * (lora.rank_stabilized ? std::sqrt(count) : count);
  }
  const nlohmann::ordered_json base =
      job.weights ? nlohmann::ordered_json(job.weights->from) : nlohmann::ordered_json(nullptr);
  const nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                         {"task_type", nullptr},
                                         {"base_model_name_or_path", base},
                                         {"inference_mode", true},
                                         {"r", lora.rank},
                                         {"lora_alpha", lora.alpha},
                                         {"rank_pattern", ranks},
                                         {"alpha_pattern", alphas},
                                         {"lora_dropout", lora.dropout},
                                         {"use_rslora", lora.rank_stabilized},
                                         {"use_dora", lora.dora},
                                         {"bias", "none"},
                                         {"fan_in_fan_out", is_transposed},
                                         {"target_modules", names}};
  return config.dump(2) + "\n";
}

/// Writes the folder of one adapter. Returns its modules and bytes.
ExportedAdapters export_one(const Manifest& manifest, const std::string& directory, const JobSpec& job,
                            const NameMap& map, const std::string& own, DType dtype, const std::string& folder,
                            Disk& disk) {
  const AdapterModules modules(adapted_layers(manifest, own), map, numbers_of(job));
  AdapterFile file(manifest, directory, modules, *job.adapters.lora, own, dtype, folder + "/" + kPeftWeightsName, disk);
  const Owners owners = owners_of(modules);
  for (const auto& [module, layers] : owners) file.write(module, layers, modules.units(module));
  const int64_t bytes = file.finish();
  const std::string config = config_text(job, modules);
  DiskFile text(folder + "/" + kPeftConfigName, disk);
  text.write(0, {reinterpret_cast<const uint8_t*>(config.data()), config.size()});
  text.sync_and_close();
  return {static_cast<int64_t>(owners.size()), bytes};
}

}  // namespace

ExportedAdapters export_adapters(const Manifest& manifest, const std::string& directory, const JobSpec& job,
                                 const NameMap& map, DType dtype, const std::string& folder, Disk& disk) {
  if (const std::string other = other_trained(manifest, job); !other.empty())
    throw EnvError(
        fmt::format("{}: the job also trained {}, which PEFT's format has no place for: export merged "
                    "weights, without --adapters",
                    directory, other));
  if (job.adapters.names.empty()) return export_one(manifest, directory, job, map, "", dtype, folder, disk);
  ExportedAdapters all;
  for (const std::string& name : job.adapters.names) {
    std::filesystem::create_directory(folder + "/" + name);
    const ExportedAdapters one =
        export_one(manifest, directory, job, map, "." + name, dtype, folder + "/" + name, disk);
    all = {one.modules, all.bytes + one.bytes};
  }
  return all;
}

}  // namespace trainctl
