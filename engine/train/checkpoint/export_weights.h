// A checkpoint's weights and running statistics as files that other tools read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/dtype.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/checkpoint/mapped_weights.h"
#include "engine/train/checkpoint/name_map.h"
#include "engine/train/files/disk.h"

namespace trainctl {

struct ExportOptions {
  DType dtype = DType::f32;     ///< type in the file: f32 or bf16, rounded to nearest even
  bool latest_weights = false;  ///< weights themselves, also where the checkpoint has their average
  bool partial = false;         ///< leave out what the map does not name, instead of failing
  /// Factor of the adapters' product, which is added to the adapted weight when adapters are merged. 0: the checkpoint
  /// has no adapters.
  double adapter_factor = 0;
  std::string adapter;                  ///< which of several adapters is merged (adapters.names)
  const MappedWeights* base = nullptr;  ///< has the base of the checkpoint, if that leaves it out
  int64_t shard_bytes = 0;  ///< for a model folder: most bytes of tensors per file, if there are several tensors in it
};

struct ExportedWeights {
  int64_t tensors = 0;  ///< number of tensors in the files
  int64_t bytes = 0;
  std::vector<std::string> left_out;  ///< ours that the map does not name
  std::vector<std::string> unused;    ///< patterns of the map that none of ours has
  int64_t merged_tensors = 0;         ///< number of tensors of adapters, merged into weights
  int64_t optimizer_tensors = 0;      ///< number of tensors of the optimizer, which no such file has
};

/// Writes the file `path`, which appears only when it is complete. Throws EnvError, which lists all tensors that the
/// map does not name, or SpecError at the pattern that does not fit a tensor.
ExportedWeights export_weights(const Manifest& manifest, const std::string& directory, const NameMap& map,
                               const LayerNumbers& layers, const std::string& path, const ExportOptions& options = {},
                               Disk& disk = real_disk());

/// Writes model.safetensors into a folder, or several files with model.safetensors.index.json, as transformers names
/// them.
ExportedWeights export_to_folder(const Manifest& manifest, const std::string& directory, const NameMap& map,
                                 const LayerNumbers& layers, const std::string& folder, const ExportOptions& options,
                                 Disk& disk = real_disk());

}  // namespace trainctl
