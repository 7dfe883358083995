// Matrices of experts in MXFP4 (gpt-oss; OCP Microscaling formats 1.0), which are read as the numbers that they stand
// for.
#include "engine/train/checkpoint/mxfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/graph/bf16.h"

namespace trainctl {
namespace {

constexpr int64_t kNumbersOfBlock = 32, kBytesOfBlock = 16;
constexpr int kScaleBias = 127;
constexpr size_t kKeptMatrices = 4;  ///< several threads read neighbouring experts
constexpr std::array<float, 16> kNumbers = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

const SafetensorsEntry& require_scales(const std::string& name, const SafetensorsFile& file,
                                       const SafetensorsEntry& blocks, const SafetensorsEntry* scales) {
  if (scales == nullptr)
    throw EnvError(fmt::format("{}: has '{}{}', but no '{}{}'; MXFP4 weights need both", file.path(), printable(name),
                               kMxfp4Blocks, printable(name), kMxfp4Scales));
  const Shape &b = blocks.shape, &s = scales->shape;
  const bool fits = b.size() == 4 && b[3] == kBytesOfBlock && s == Shape{b[0], b[1], b[2]} &&
                    blocks.type == StoredType::u8 && scales->type == StoredType::u8;
  if (!fits)
    throw EnvError(
        fmt::format("{}: '{}' is {} {} with scales {} {}, expected MXFP4: U8 [experts, rows, columns / 32, "
                    "16] and U8 [experts, rows, columns / 32]",
                    file.path(), printable(blocks.name), to_string(blocks.type), to_string(b), to_string(scales->type),
                    to_string(s)));
  return *scales;
}

}  // namespace

Mxfp4Tensor::Mxfp4Tensor(std::string name, const SafetensorsFile& of_blocks, const SafetensorsEntry& blocks,
                         const SafetensorsFile* of_scales, const SafetensorsEntry* scales)
    : of_blocks_(of_blocks),
      of_scales_(of_scales == nullptr ? of_blocks : *of_scales),
      blocks_(blocks),
      scales_(require_scales(name, of_blocks, blocks, scales)),
      rows_(blocks.shape[1]),
      columns_(blocks.shape[2] * kNumbersOfBlock) {
  entry_.name = std::move(name);
  entry_.type = StoredType::bf16;
  entry_.shape = {blocks.shape[0], columns_, rows_};
  entry_.end = blocks_.bytes() + scales_.bytes();
}

void Mxfp4Tensor::read_f32(int64_t first, int64_t count, float* to) const {
  const int64_t of_matrix = rows_ * columns_;
  for (const int64_t end = first + count; first < end;) {
    const int64_t expert = first / of_matrix, begin = first % of_matrix;
    const int64_t now = std::min(end - first, of_matrix - begin);
    const Matrix values = matrix(expert);
    for (int64_t i = begin; i < begin + now; ++i) *to++ = from_bf16((*values)[static_cast<size_t>(i)]);
    first += now;
  }
}

Mxfp4Tensor::Matrix Mxfp4Tensor::matrix(int64_t expert) const {
  const std::scoped_lock lock(mutex_);
  const auto found =
      std::find_if(recent_.begin(), recent_.end(), [&](const auto& kept) { return kept.first == expert; });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
  } else {
    recent_.emplace_front(expert, std::make_shared<const std::vector<uint16_t>>(dequantize(expert)));
    if (recent_.size() > kKeptMatrices) recent_.pop_back();
  }
  return recent_.front().second;
}

std::vector<uint16_t> Mxfp4Tensor::dequantize(int64_t expert) const {
  const int64_t count = columns_ / kNumbersOfBlock;  // blocks of a row
  std::vector<uint8_t> blocks(static_cast<size_t>(rows_ * count * kBytesOfBlock)),
      scales(static_cast<size_t>(rows_ * count));
  of_blocks_.read(blocks_, expert * static_cast<int64_t>(blocks.size()), blocks);
  of_scales_.read(scales_, expert * static_cast<int64_t>(scales.size()), scales);
  std::vector<uint16_t> matrix(static_cast<size_t>(rows_ * columns_));
  for (int64_t block = 0; block < rows_ * count; ++block) {
    const int64_t row = block / count, column = block % count * kNumbersOfBlock;
    const int exponent = scales[static_cast<size_t>(block)] - kScaleBias;
    for (int64_t i = 0; i < kNumbersOfBlock; ++i) {
      const uint8_t byte = blocks[static_cast<size_t>(block * kBytesOfBlock + i / 2)];
      const float value = std::ldexp(kNumbers[i % 2 == 0 ? byte & 0xf : byte >> 4], exponent);
      if (!std::isfinite(value))
        throw EnvError(fmt::format("{}: '{}': the scale of row {}, block {} of expert {} is 2^{}, which is too large",
                                   of_scales_.path(), printable(scales_.name), row, block % count, expert, exponent));
      matrix[static_cast<size_t>((column + i) * rows_ + row)] = to_bf16(value);
    }
  }
  return matrix;
}

}  // namespace trainctl
