// Initial values of parameters and states: each element depends only on (seed, tensor name, global element index), so a
// rank computes just its slice and no layout changes a value.
#include "engine/runtime/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/graph/half.h"
#include "engine/ops/random.h"
#include "engine/runtime/parts.h"

namespace trainctl {
namespace {

float unit(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// Box-Muller, in double, so that the value does not depend on a libm's float rounding.
float normal_value(const Philox4& words, int index) {
  const double u1 = 1.0 - unit(words.v[index & 2]);
  const double u2 = unit(words.v[(index & 2) + 1]);
  const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 2.0 * std::numbers::pi * u2;
  return static_cast<float>(radius * ((index & 1) ? std::sin(angle) : std::cos(angle)));
}

}  // namespace

void initial_values(std::string_view name, const Init& init, uint64_t seed, int64_t first, int64_t count, float* out) {
  const auto scale = static_cast<float>(init.value);
  if (init.kind == Init::Kind::constant || init.kind == Init::Kind::row_norms) {
    std::fill_n(out, count, scale);
    return;
  }
  const uint64_t key = stream_key(seed, stable_hash(name));
  Philox4 words{};
  for (int64_t i = first; i < first + count; ++i) {
    if (i == first || (i & 3) == 0) words = philox(key, static_cast<uint64_t>(i) >> 2, 0);
    const int index = static_cast<int>(i & 3);
    out[i - first] = init.kind == Init::Kind::uniform ? scale * (2.0f * unit(words.v[index]) - 1.0f)
                                                      : scale * normal_value(words, index);
  }
}

void initial_values(const Variable& variable, uint64_t seed, int64_t first, int64_t count, float* out) {
  check(variable.dtype != DType::i32, "parameters and states with initial values are floats");
  for_each_run(variable.global_shape, variable.offset, variable.shape,
               [&](int64_t in_part, int64_t in_whole, int64_t length) {
                 const int64_t begin = std::max(in_part, first), end = std::min(in_part + length, first + count);
                 if (begin >= end) return;
                 initial_values(variable.name, variable.init, seed, in_whole + begin - in_part, end - begin,
                                out + (begin - first));
               });
}

namespace {

void write_halves(const StoredRange& range, uint64_t seed, uint16_t* out) {
  constexpr int64_t kBlock = 4096;
  float block[kBlock];
  for (int64_t at = 0; at < range.count; at += kBlock) {
    const int64_t n = std::min(kBlock, range.count - at);
    initial_values(*range.variable, seed, range.first + at, n, block);
    floats_to_halves(range.dtype, block, n, out + at);
  }
}

}  // namespace

void write_initial_weights(const Program& program, uint64_t seed, std::byte* arena) {
  for (const StoredRange& range : stored_ranges(program)) {
    if (!has_initial_values(range)) continue;
    std::byte* to = arena + range.offset;
    if (is_half(range.dtype))
      write_halves(range, seed, reinterpret_cast<uint16_t*>(to));
    else
      initial_values(*range.variable, seed, range.first, range.count, reinterpret_cast<float*>(to));
  }
}

}  // namespace trainctl
