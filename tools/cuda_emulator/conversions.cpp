// The instructions cvt and cvta, and instructions on pairs of bf16.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "engine/graph/f16.h"
#include "tools/cuda_emulator/decoder.h"
#include "tools/cuda_emulator/lanes.h"

namespace trainctl::emulator {
namespace {

uint16_t bf16_of(float v) {
  const auto bits = std::bit_cast<uint32_t>(v);
  if (v != v) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct FromBf16 {
  float operator()(uint16_t v) const { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }
};
struct ToBf16 {
  uint16_t operator()(float v) const { return bf16_of(v); }
};
struct FromF16 {
  float operator()(uint16_t v) const { return from_f16(v); }
};
struct ToF16 {
  uint16_t operator()(float v) const { return to_f16(v); }
};
struct ToBf16Pair {
  uint32_t operator()(float high, float low) const { return static_cast<uint32_t>(bf16_of(high)) << 16 | bf16_of(low); }
};
/// Rounds to E4M3: values are multiples of 2^(exponent - 3), where the exponent is at least -6. Magnitudes beyond 448
/// become 448.
uint16_t e4m3_of(float v) {
  const uint32_t sign = std::signbit(v) ? 0x80u : 0;
  if (std::isnan(v)) return static_cast<uint16_t>(sign | 0x7fu);
  const float size = std::fmin(std::fabs(v), 448.0f);
  const int exponent = size == 0 ? -6 : std::max(std::ilogb(size), -6);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  return static_cast<uint16_t>(sign | (static_cast<uint32_t>(exponent + 6) * 8 + steps));
}
struct ToE4m3Pair {
  uint16_t operator()(float high, float low) const { return static_cast<uint16_t>(e4m3_of(high) << 8 | e4m3_of(low)); }
};
/// Rounds to E5M2. Magnitudes beyond 57344 become 57344.
uint16_t e5m2_of(float v) {
  const uint32_t sign = std::signbit(v) ? 0x80u : 0u;
  if (std::isnan(v)) return static_cast<uint16_t>(sign | 0x7fu);
  const float size = std::fmin(std::fabs(v), 57344.0f);
  const int exponent = size == 0 ? -14 : std::max(std::ilogb(size), -14);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 2 - exponent)));
  return static_cast<uint16_t>(sign | (static_cast<uint32_t>(exponent + 14) * 4 + steps));
}
struct ToE5m2Pair {
  uint16_t operator()(float high, float low) const { return static_cast<uint16_t>(e5m2_of(high) << 8 | e5m2_of(low)); }
};
struct LargerBf16Pair {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    const FromBf16 wide;
    const auto larger = [&](uint32_t shift) {
      const auto of = [&](uint32_t v) { return wide(static_cast<uint16_t>(v >> shift)); };
      return static_cast<uint32_t>(bf16_of(std::fmax(of(a), of(b)))) << shift;
    };
    return larger(16) | larger(0);
  }
};
struct Saturate {
  float operator()(float v) const { return v >= 1 ? 1.0f : v > 0 ? v : 0.0f; }
};
struct Same {
  template <class T>
  T operator()(T v) const {
    return v;
  }
};
/// Converts a float to an integer. A value out of range becomes the nearest representable one, and NaN becomes 0.
template <class I>
I clamped(double v) {
  if (v != v) return 0;
  if (v <= static_cast<double>(std::numeric_limits<I>::min())) return std::numeric_limits<I>::min();
  if (v >= static_cast<double>(std::numeric_limits<I>::max())) return std::numeric_limits<I>::max();
  return static_cast<I>(v);
}
template <class I>
struct RoundToInteger {
  template <class T>
  I operator()(T v) const {
    return clamped<I>(std::nearbyint(static_cast<double>(v)));
  }
};
struct RoundToWhole {
  template <class T>
  T operator()(T v) const {
    return std::nearbyint(v);
  }
};
struct CutToWhole {
  template <class T>
  T operator()(T v) const {
    return std::trunc(v);
  }
};
struct FloorToWhole {
  template <class T>
  T operator()(T v) const {
    return std::floor(v);
  }
};
template <class I>
struct CutToInteger {
  template <class T>
  I operator()(T v) const {
    return clamped<I>(std::trunc(static_cast<double>(v)));
  }
};
template <class I>
struct FloorToInteger {
  template <class T>
  I operator()(T v) const {
    return clamped<I>(std::floor(static_cast<double>(v)));
  }
};

template <class Do>
bool with_converted_integer(std::string_view type, Do work) {
  if (type == "s8") return work(int8_t{}), true;
  if (type == "u8") return work(uint8_t{}), true;
  if (type == "s16") return work(int16_t{}), true;
  if (type == "u16") return work(uint16_t{}), true;
  if (type == "s32") return work(int32_t{}), true;
  if (type == "u32") return work(uint32_t{}), true;
  if (type == "s64") return work(int64_t{}), true;
  if (type == "u64") return work(uint64_t{}), true;
  return false;
}
template <class Do>
bool with_float(std::string_view type, Do work) {
  if (type == "f32") return work(float{}), true;
  if (type == "f64") return work(double{}), true;
  return false;
}

/// Converts the integer in the lowest bytes of a register for a register that may be wider.
template <class To, class From>
void widen(const Instruction& in, Warp& w, uint32_t mask) {
  const auto take = [&](int lane) {
    const std::byte* from = w.registers + in.from[0] + static_cast<ptrdiff_t>(in.data_width) * lane;
    return *reinterpret_cast<const From*>(from);
  };
  each_lane(mask, [&](int lane) {
    const auto value = static_cast<To>(take(lane));
    switch (in.element_bytes) {  // of the result's register
      case 2:
        w.at<uint16_t>(in.to[0])[lane] = static_cast<uint16_t>(value);
        break;
      case 4:
        w.at<uint32_t>(in.to[0])[lane] = static_cast<uint32_t>(value);
        break;
      default:
        w.at<uint64_t>(in.to[0])[lane] = static_cast<uint64_t>(value);
        break;
    }
  });
}

template <class To, class From>
bool decode_integers(Decoder& d, const Statement& s, Instruction& in) {
  const Register to = d.reg(s.arguments.at(0)), from = d.reg(s.arguments.at(1));
  in.to[0] = to.at;
  in.from[0] = from.at;
  in.data_width = from.bytes;
  in.element_bytes = to.bytes;
  in.run = to.bytes == sizeof(To) && from.bytes == sizeof(From) ? unary<To, From, Same> : widen<To, From>;
  return true;
}

template <class F, class I>
void to_integer(Decoder& d, const Statement& s, Instruction& in) {
  in.to[0] = d.target(s.arguments.at(0), sizeof(I));
  in.from[0] = d.source(s.arguments.at(1), sizeof(F));
  if (s.has("rni")) in.run = unary<I, F, RoundToInteger<I>>;
  if (s.has("rzi")) in.run = unary<I, F, CutToInteger<I>>;
  if (s.has("rmi")) in.run = unary<I, F, FloorToInteger<I>>;
}

bool decode_address_space(Decoder& d, const Statement& s, Instruction& in) {
  if (s.words[0] != "cvta") return false;
  in.to[0] = d.target(s.arguments.at(0), 8);
  in.from[0] = d.source(s.arguments.at(1), 8);
  const std::string_view space = s.words[s.words[1] == "to" ? 2 : 1];
  const bool to = s.words[1] == "to";
  if (space == "global") {
    in.run = unary<uint64_t, uint64_t, Same>;
  } else if (space == "shared") {
    in.run = to ? [](const Instruction& i, Warp& w, uint32_t mask) {
      const uint64_t* a = w.at<uint64_t>(i.from[0]);
      put(w.at<uint64_t>(i.to[0]), mask, [=](int lane) { return a[lane] & ~kWindowMask; });
    } : [](const Instruction& i, Warp& w, uint32_t mask) {
      const uint64_t* a = w.at<uint64_t>(i.from[0]);
      put(w.at<uint64_t>(i.to[0]), mask, [=](int lane) { return a[lane] | kSharedWindow; });
    };
  } else if (space == "param" && !to) {
    in.run = [](const Instruction& i, Warp& w, uint32_t mask) {
      const uint64_t* a = w.at<uint64_t>(i.from[0]);
      const auto first = reinterpret_cast<uint64_t>(w.block->cluster->launch->parameters);
      put(w.at<uint64_t>(i.to[0]), mask, [=](int lane) { return a[lane] + first; });
    };
  }
  return in.run != nullptr;
}

/// Decodes the instruction that takes the larger one of each of two bf16 numbers in a word.
bool decode_larger_pair(Decoder& d, const Statement& s, Instruction& in) {
  if (s.opcode == "max.bf16x2") {
    in.to[0] = d.target(s.arguments.at(0), 4);
    in.from[0] = d.source(s.arguments.at(1), 4);
    in.from[1] = d.source(s.arguments.at(2), 4);
    in.run = binary<uint32_t, uint32_t, uint32_t, LargerBf16Pair>;
    return true;
  }
  return false;
}

/// Conversions from and to types of 16 and 8 bits.
bool decode_narrow_conversion(Decoder& d, const Statement& s, Instruction& in) {
  const std::string_view to = s.words[s.words.size() - 2], from = s.words.back();
  if (s.opcode == "cvt.f32.bf16" || s.opcode == "cvt.rn.bf16.f32" || s.opcode == "cvt.sat.f32.f32") {
    const bool widens = from == "bf16", narrows = to == "bf16";
    in.to[0] = d.target(s.arguments.at(0), narrows ? 2 : 4);
    in.from[0] = d.source(s.arguments.at(1), widens ? 2 : 4);
    in.run = widens    ? unary<float, uint16_t, FromBf16>
             : narrows ? unary<uint16_t, float, ToBf16>
                       : unary<float, float, Saturate>;
    return true;
  }
  if (s.opcode == "cvt.f32.f16" || s.opcode == "cvt.rn.f16.f32") {
    const bool widens = from == "f16";
    in.to[0] = d.target(s.arguments.at(0), widens ? 4 : 2);
    in.from[0] = d.source(s.arguments.at(1), widens ? 2 : 4);
    in.run = widens ? unary<float, uint16_t, FromF16> : unary<uint16_t, float, ToF16>;
    return true;
  }
  if (s.opcode == "cvt.rn.bf16x2.f32") {
    in.to[0] = d.target(s.arguments.at(0), 4);
    in.from[0] = d.source(s.arguments.at(1), 4);
    in.from[1] = d.source(s.arguments.at(2), 4);
    in.run = binary<uint32_t, float, float, ToBf16Pair>;
    return true;
  }
  const bool to_e4m3 = s.opcode == "cvt.rn.satfinite.e4m3x2.f32";
  if (to_e4m3 || s.opcode == "cvt.rn.satfinite.e5m2x2.f32") {
    in.to[0] = d.target(s.arguments.at(0), 2);
    in.from[0] = d.source(s.arguments.at(1), 4);
    in.from[1] = d.source(s.arguments.at(2), 4);
    in.run = to_e4m3 ? binary<uint16_t, float, float, ToE4m3Pair> : binary<uint16_t, float, float, ToE5m2Pair>;
    return true;
  }
  return false;
}

/// Conversions among integers and floating-point numbers of 32 and 64 bits.
bool decode_wide_conversion(Decoder& d, const Statement& s, Instruction& in) {
  const std::string_view to = s.words[s.words.size() - 2], from = s.words.back();
  bool known = false;
  with_converted_integer(to, [&](auto t) {
    using To = decltype(t);
    with_converted_integer(from, [&](auto f) { known = decode_integers<To, decltype(f)>(d, s, in); });
    if constexpr (sizeof(To) >= 4) {
      with_float(from, [&](auto f) {
        to_integer<decltype(f), To>(d, s, in);
        known = in.run != nullptr;
      });
    }
  });
  with_float(to, [&](auto t) {
    using To = decltype(t);
    const auto set = [&](auto f) {
      using From = decltype(f);
      const bool whole = std::is_same_v<To, From> && (s.has("rni") || s.has("rzi") || s.has("rmi"));
      if (s.words.size() == 4 && s.words[1] != "rn" && !whole) return;
      in.to[0] = d.target(s.arguments.at(0), sizeof(To));
      in.from[0] = d.source(s.arguments.at(1), sizeof(From));
      in.run = !whole         ? unary<To, From, Same>
               : s.has("rni") ? unary<To, From, RoundToWhole>
               : s.has("rzi") ? unary<To, From, CutToWhole>
                              : unary<To, From, FloorToWhole>;
      known = true;
    };
    with_float(from, set);
    with_converted_integer(from, [&](auto f) {
      if constexpr (sizeof(f) >= 2) set(f);
    });
  });
  return known;
}

}  // namespace

bool decode_conversion(Decoder& d, const Statement& s, Instruction& in) {
  if (decode_address_space(d, s, in) || decode_larger_pair(d, s, in)) return true;
  if (s.words[0] != "cvt" || s.words.size() < 3) return false;
  if (decode_narrow_conversion(d, s, in)) return true;
  return !s.has("sat") && !s.has("ftz") && decode_wide_conversion(d, s, in);
}

}  // namespace trainctl::emulator
