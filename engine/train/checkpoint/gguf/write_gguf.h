// A model folder as one file of llama.cpp: settings, tokenizer and weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/train/files/gguf_file.h"

namespace trainctl {

struct WrittenGguf {
  std::string architecture;
  int64_t tensors = 0, bytes = 0;
  std::vector<std::string> notes;  ///< differences between llama.cpp's computations and the model's
};

struct GgufOptions {
  std::string name;  ///< name of the model
  GgufType type =
      GgufType::f16;      ///< type of matrices; vectors are f32, and rows that q8_0 cannot divide into blocks f16
  std::string tokenizer;  ///< folder with tokenizer.json
};

/// `folder`: config.json and safetensors files. Writes `path`. Throws SpecError (--format), EnvError.
WrittenGguf write_gguf(const std::string& folder, const std::string& path, const GgufOptions& options);

}  // namespace trainctl
