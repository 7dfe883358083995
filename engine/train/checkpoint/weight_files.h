// The weights of a model as other tools keep them: one safetensors file, or several with an index.
//
//   model.safetensors
//   model.safetensors.index.json     {"weight_map": {"h.0.weight": "model-00001-of-00002.safetensors", …}}
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/train/checkpoint/mxfp4.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {

class WeightFiles {
 public:
  /// `path` is a file, an index, or a folder that has model.safetensors or its index. Throws EnvError; for files of
  /// torch the message says how to convert them.
  explicit WeightFiles(const std::string& path);

  const std::string& path() const { return path_; }
  /// MXFP4 weights X are listed as X, in place of X_blocks and X_scales (mxfp4.h).
  const std::vector<std::string>& names() const { return names_; }
  /// A digest in 32 hexadecimal digits of the names, types and shapes of all tensors, and of the first and last bytes
  /// of each. It does not depend on how the tensors are divided into files.
  std::string fingerprint() const;
  const SafetensorsEntry* find(const std::string& name) const;  ///< null if there is none
  /// Elements [first, first + count) as f32. Throws EnvError if the type has no numbers that fit.
  void read_f32(const std::string& name, int64_t first, int64_t count, float* to) const;
  /// Reads the bytes of a part of a tensor, unconverted.
  void read(const std::string& name, int64_t at, std::span<uint8_t> to) const;

 private:
  void open(const std::string& path);
  void open_index(const std::string& path);
  void find_quantized();

  struct Place {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };
  const Place& place_of(const std::string& name) const;

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, Place> places_;  ///< tensors of the files
  std::unordered_map<std::string, std::unique_ptr<Mxfp4Tensor>> quantized_;
  std::vector<std::string> names_;
};

}  // namespace trainctl
