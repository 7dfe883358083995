// Files in the format of llama.cpp (GGUF, version 3): typed metadata key-value pairs, and tensors.
//
//   file    = "GGUF" u32(3) u64(tensors) u64(settings) {setting} {tensor} zeros data
//   setting = string(key) u32(type) value                 string = u64(bytes) bytes
//   tensor  = string(name) u32(dims) u64 … u32(type) u64(offset in data)    the fastest dim first
//   data    = the tensors, each at a multiple of 32
//
// Little-endian. A q8_0 block is an f16 scale and 32 int8 values, for 32 elements of a row.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/train/files/disk.h"

namespace trainctl {

enum class GgufType : uint32_t { f32 = 0, f16 = 1, q8_0 = 8 };  ///< numbers of the format
inline constexpr int64_t kGgufBlock = 32;                       ///< elements per q8_0 block

/// Bytes of `elements` elements, which must fill whole blocks in q8_0.
int64_t gguf_bytes(GgufType type, int64_t elements);
/// Converts elements: rounded to the nearest value, and to even between two. q8_0: whole blocks.
std::vector<uint8_t> gguf_values(GgufType type, std::span<const float> values);

using GgufSetting = std::variant<uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<int32_t>,
                                 std::vector<float>>;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::f32;
  Shape shape;  ///< row-major, as in checkpoints
};

/// Writes one file. Throws EnvError.
class GgufWriter {
 public:
  GgufWriter(const std::string& path, const std::vector<std::pair<std::string, GgufSetting>>& settings,
             const std::vector<GgufTensor>& tensors, Disk& disk = real_disk());
  /// Elements of a tensor from `first` on; with q8_0 whole blocks.
  void write(size_t tensor, int64_t first, std::span<const float> values);
  /// Syncs and closes. Returns the bytes of the file.
  int64_t finish();

 private:
  std::vector<GgufTensor> tensors_;
  std::vector<int64_t> places_;  ///< offsets of the tensors in the file
  int64_t bytes_ = 0;
  DiskFile file_;
};

}  // namespace trainctl
