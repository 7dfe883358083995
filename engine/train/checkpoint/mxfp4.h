// Matrices of experts in MXFP4 (gpt-oss; OCP Microscaling formats 1.0), which are read as the numbers that they stand
// for. Files have two tensors in place of X:
//
//   X_blocks  U8 [experts, rows, columns / 32, 16]   two numbers per byte, the first in the
//                                                    low bits: a sign and one of
//                                                    0, 0.5, 1, 1.5, 2, 3, 4, 6
//   X_scales  U8 [experts, rows, columns / 32]       one for 32 numbers, which are multiplied by 2^(scale - 127)
//
// X is [experts, columns, rows], as transformers dequantizes it: the matrices of the files are transposed.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/train/files/safetensors.h"

namespace trainctl {

inline constexpr std::string_view kMxfp4Blocks = "_blocks", kMxfp4Scales = "_scales";

class Mxfp4Tensor {
 public:
  /// `scales` is null if the files have no such tensor. Throws EnvError if the two tensors do not have the form above.
  Mxfp4Tensor(std::string name, const SafetensorsFile& of_blocks, const SafetensorsEntry& blocks,
              const SafetensorsFile* of_scales, const SafetensorsEntry* scales);

  /// The entry of X. Its byte count is that of the files' two tensors.
  const SafetensorsEntry& entry() const { return entry_; }
  /// Reads elements [first, first + count) of X. Any number of threads may read at once. Throws EnvError if a number is
  /// too large.
  void read_f32(int64_t first, int64_t count, float* to) const;

 private:
  /// One expert's matrix, [columns, rows] in bf16, which represents each number exactly.
  using Matrix = std::shared_ptr<const std::vector<uint16_t>>;
  Matrix matrix(int64_t expert) const;
  std::vector<uint16_t> dequantize(int64_t expert) const;

  SafetensorsEntry entry_;
  const SafetensorsFile &of_blocks_, &of_scales_;
  const SafetensorsEntry &blocks_, &scales_;
  int64_t rows_ = 0, columns_ = 0;
  mutable std::mutex mutex_;
  mutable std::list<std::pair<int64_t, Matrix>> recent_;  ///< by expert, the last one first
};

}  // namespace trainctl
