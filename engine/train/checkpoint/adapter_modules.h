// The modules of another tool's model that an adapted layer consists of, and PEFT's names of their adapters. A name map
// describes the layer's weight; the order of the weight's rows is that of B, the order of its columns that of A.
//
//   h.0.qkv    model.layers.0.self_attn.q_proj, .k_proj, .v_proj: each has some rows of B, and the same A
//   h.0.gate   model.layers.0.mlp.gate_up_proj: its first rows; those of h.0.up follow
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/train/checkpoint/name_map.h"

namespace trainctl {

struct AdaptedLayer {
  struct Row {
    size_t module = 0;  ///< index in `modules`
    int64_t row = 0;    ///< row of the module's weight, which is [out, in] as in PyTorch's Linear
  };

  std::string name;
  int64_t units = 0, features = 0;
  std::vector<std::string> modules{};
  std::vector<Row> rows{};         ///< place of each of our units
  std::vector<int64_t> columns{};  ///< the module's feature for each of our features
  bool is_transposed = false;      ///< the modules keep [in, out], as Conv1D does
};

class AdapterModules {
 public:
  /// `layers` has the names and sizes of the adapted layers. Throws EnvError if the map has no weight for a layer, or a
  /// weight of another shape.
  AdapterModules(std::vector<AdaptedLayer> layers, const NameMap& map, const LayerNumbers& numbers);

  const std::vector<AdaptedLayer>& layers() const { return layers_; }
  /// Number of rows of a module's weight. check(): some layer has the module.
  int64_t units(const std::string& module) const { return units_.at(module); }

 private:
  void place(AdaptedLayer& layer, const NameMap& map, const LayerNumbers& numbers);

  std::vector<AdaptedLayer> layers_;
  std::map<std::string, int64_t> units_;       ///< by module
  std::map<std::string, int64_t> part_units_;  ///< by part of a fused module
};

inline constexpr const char* kPeftConfigName = "adapter_config.json";
inline constexpr const char* kPeftWeightsName = "adapter_model.safetensors";
/// Names of a module's A and B, and of DoRA's norms, in kPeftWeightsName.
std::string peft_a(const std::string& module);
std::string peft_b(const std::string& module);
std::string peft_magnitude(const std::string& module);

}  // namespace trainctl
