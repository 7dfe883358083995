// Elements of the types of safetensors as numbers. 8-bit floats: arXiv 2209.05433.
#include "engine/train/checkpoint/values.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/error.h"

namespace trainctl {
namespace {

template <class T>
double load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(value);
}

/// The value of a float with a sign, `exponent_bits` and `mantissa_bits`. With `has_infinity` the largest exponent is
/// for infinities and nans; otherwise only the largest bit pattern is a nan.
double small_float(uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1), most = (1u << exponent_bits) - 1;
  const uint32_t exponent = bits >> mantissa_bits & most;
  const double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
  const int bias = static_cast<int>(most >> 1);
  if (has_infinity && exponent == most) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == most && mantissa == (1u << mantissa_bits) - 1) return std::nan("");
  const bool normal = exponent != 0;
  const double digits = std::ldexp(mantissa, -mantissa_bits) + (normal ? 1 : 0);
  return sign * std::ldexp(digits, static_cast<int>(normal ? exponent : 1) - bias);
}

uint32_t word(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

}  // namespace

bool has_values(StoredType type) {
  switch (type) {
    case StoredType::f4:
    case StoredType::f6_e2m3:
    case StoredType::f6_e3m2:
    case StoredType::f8_e8m0:
    case StoredType::f8_e4m3fnuz:
    case StoredType::f8_e5m2fnuz:
    case StoredType::c64:
      return false;
    default:
      return true;
  }
}

double value_of(StoredType type, const uint8_t* at) {
  switch (type) {
    case StoredType::boolean:
    case StoredType::u8:
      return *at;
    case StoredType::i8:
      return load<int8_t>(at);
    case StoredType::f8_e5m2:
      return small_float(*at, 5, 2, true);
    case StoredType::f8_e4m3:
      return small_float(*at, 4, 3, false);
    case StoredType::i16:
      return load<int16_t>(at);
    case StoredType::u16:
      return load<uint16_t>(at);
    case StoredType::f16:
      return small_float(word(at), 5, 10, true);
    case StoredType::bf16:
      return small_float(word(at), 8, 7, true);
    case StoredType::i32:
      return load<int32_t>(at);
    case StoredType::u32:
      return load<uint32_t>(at);
    case StoredType::f32:
      return load<float>(at);
    case StoredType::f64:
      return load<double>(at);
    case StoredType::i64:
      return load<int64_t>(at);
    case StoredType::u64:
      return load<uint64_t>(at);
    default:
      break;
  }
  check(false, "has_values must have returned true");
  return 0;
}

}  // namespace trainctl
