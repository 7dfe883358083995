// The storage of frozen weights in fewer bits than kernels compute with (train.frozen_type). A row of a weight is cut
// into blocks of 64 elements, each stored as 32-bit words: the largest magnitude of the block, then its codes.
//
//   nf4    [absmax f32 | 8 words of eight 4-bit codes]    9 words;  element = kNf4Codes[code] * absmax
//   int8   [absmax f32 | 16 words of four 8-bit codes]   17 words;  element = code * (absmax / 127)
//
// Code i of a word is in its bits [i * bits, (i + 1) * bits). Blocks belong to rows, so a weight may be cut between any
// rows and between blocks. The codes of nf4 are those of bitsandbytes (https://arxiv.org/abs/2305.14314, appendix E).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "engine/graph/bf16.h"
#include "engine/graph/shape.h"

namespace trainctl {

/// none: the type that kernels read. bf16: without blocks.
enum class Packing : uint8_t { none, bf16, int8, nf4 };

constexpr std::string_view to_string(Packing packing) {
  constexpr std::string_view kNames[] = {"none", "bf16", "int8", "nf4"};
  return kNames[static_cast<size_t>(packing)];
}

/// Returns the packing with this name, or Packing::none for any other name.
constexpr Packing packing_of(std::string_view name) {
  for (const Packing packing : {Packing::bf16, Packing::int8, Packing::nf4})
    if (to_string(packing) == name) return packing;
  return Packing::none;
}

inline constexpr int64_t kPackedBlock = 64;

/// Returns whether elements are stored as words of blocks, so that the stored shape differs.
constexpr bool has_blocks(Packing packing) { return packing == Packing::int8 || packing == Packing::nf4; }
constexpr int64_t words_per_block(Packing packing) { return packing == Packing::nf4 ? 9 : 17; }

/// The stored shape of a weight whose last dim is a multiple of kPackedBlock; and the shape of a stored weight.
inline Shape packed_shape(Shape shape, Packing packing) {
  if (has_blocks(packing)) shape.back() = shape.back() / kPackedBlock * words_per_block(packing);
  return shape;
}
inline Shape unpacked_shape(Shape shape, Packing packing) {
  if (has_blocks(packing)) shape.back() = shape.back() / words_per_block(packing) * kPackedBlock;
  return shape;
}

inline constexpr std::array<float, 16> kNf4Codes = {-1.0f,
                                                    -0.6961928009986877f,
                                                    -0.5250730514526367f,
                                                    -0.39491748809814453f,
                                                    -0.28444138169288635f,
                                                    -0.18477343022823334f,
                                                    -0.09105003625154495f,
                                                    0.0f,
                                                    0.07958029955625534f,
                                                    0.16093020141124725f,
                                                    0.24611230194568634f,
                                                    0.33791524171829224f,
                                                    0.44070982933044434f,
                                                    0.5626170039176941f,
                                                    0.7229568362236023f,
                                                    1.0f};

/// Returns the index of the nf4 code that is nearest to `value`; at equal distance, the lower code. Runs a binary
/// search of four steps without branches.
inline uint32_t nf4_code(float value) {
  const auto is_above = [&](uint32_t code) -> uint32_t {
    return value > (kNf4Codes[code] + kNf4Codes[code + 1]) / 2 ? 1 : 0;
  };
  uint32_t code = is_above(7) * 8;
  code += is_above(code + 3) * 4;
  code += is_above(code + 1) * 2;
  return code + is_above(code);
}

/// Packs blocks of 64 elements. `packing` has blocks.
inline void pack_blocks(Packing packing, const float* values, int64_t blocks, uint32_t* words) {
  const bool is_nf4 = packing == Packing::nf4;
  const int bits = is_nf4 ? 4 : 8, together = 32 / bits;
  for (int64_t b = 0; b < blocks; ++b, values += kPackedBlock) {
    float most = 0;
    for (int64_t i = 0; i < kPackedBlock; ++i) most = std::max(most, std::fabs(values[i]));
    *words++ = std::bit_cast<uint32_t>(most);
    const float factor = most > 0 ? 1 / most : 0;
    for (int64_t i = 0; i < kPackedBlock; i += together) {
      uint32_t word = 0;
      for (int j = 0; j < together; ++j) {
        const float v = values[i + j];
        const uint32_t code =
            is_nf4 ? nf4_code(v * factor) : static_cast<uint32_t>(most > 0 ? std::lrint(127 * (v / most)) : 0) & 0xffu;
        word |= code << (j * bits);
      }
      *words++ = word;
    }
  }
}

/// Unpacks blocks of 64 elements: the reverse of pack_blocks.
inline void unpack_blocks(Packing packing, const uint32_t* words, int64_t blocks, float* values) {
  const bool is_nf4 = packing == Packing::nf4;
  for (int64_t b = 0; b < blocks; ++b) {
    const auto most = std::bit_cast<float>(*words++);
    const float step = most / 127;
    for (int64_t i = 0; i < kPackedBlock; i += is_nf4 ? 8 : 4, ++words) {
      if (is_nf4)
        for (int j = 0; j < 8; ++j) *values++ = kNf4Codes[*words >> (4 * j) & 15u] * most;
      else
        for (int j = 0; j < 4; ++j) *values++ = static_cast<float>(static_cast<int8_t>(*words >> (8 * j))) * step;
    }
  }
}

/// Rounds values of a row to those that its stored form has; `count` is a multiple of kPackedBlock if there are blocks.
inline void round_as_stored(Packing packing, float* values, int64_t count) {
  if (packing == Packing::bf16)
    for (int64_t i = 0; i < count; ++i) values[i] = from_bf16(to_bf16(values[i]));
  if (!has_blocks(packing)) return;
  std::array<uint32_t, 17> words;
  for (int64_t i = 0; i < count; i += kPackedBlock) {
    pack_blocks(packing, values + i, 1, words.data());
    unpack_blocks(packing, words.data(), 1, values + i);
  }
}

}  // namespace trainctl
