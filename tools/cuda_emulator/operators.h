// Operations that instructions compute for one lane.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace trainctl::emulator {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
constexpr bool is_float = std::is_floating_point_v<T>;

/// Computes with integers that wrap around.
template <class T, class F>
T wrapped(T a, T b, F f) {
  if constexpr (is_float<T>)
    return f(a, b);
  else
    return static_cast<T>(f(static_cast<Unsigned<T>>(a), static_cast<Unsigned<T>>(b)));
}
struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return wrapped(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Sub {
  template <class T>
  T operator()(T a, T b) const {
    return wrapped(a, b, [](auto x, auto y) { return x - y; });
  }
};
struct Mul {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (sizeof(T) == 2)
      return static_cast<T>(int64_t{a} * b);
    else
      return wrapped(a, b, [](auto x, auto y) { return x * y; });
  }
};
__extension__ using Signed128 = __int128;
__extension__ using Unsigned128 = unsigned __int128;
struct MulHigh {
  template <class T>
  T operator()(T a, T b) const {
    using Wide = std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, Signed128, Unsigned128>,
                                    std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
    return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> (sizeof(T) * 8));
  }
};
template <class W>
struct MulWide {
  template <class T>
  W operator()(T a, T b) const {
    return static_cast<W>(a) * static_cast<W>(b);
  }
};
struct Div {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (is_float<T>)
      return a / b;
    else
      return b == 0                                             ? static_cast<T>(-1)
             : (std::is_signed_v<T> && b == static_cast<T>(-1)) ? static_cast<T>(0 - static_cast<Unsigned<T>>(a))
                                                                : static_cast<T>(a / b);
  }
};
struct Rem {
  template <class T>
  T operator()(T a, T b) const {
    return b == 0 ? a : (std::is_signed_v<T> && b == static_cast<T>(-1)) ? T{0} : static_cast<T>(a % b);
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (is_float<T>)
      return std::fmin(a, b);
    else
      return a < b ? a : b;
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (is_float<T>)
      return std::fmax(a, b);
    else
      return a < b ? b : a;
  }
};
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct Neg {
  template <class T>
  T operator()(T a) const {
    if constexpr (is_float<T>)
      return -a;
    else
      return static_cast<T>(0 - static_cast<Unsigned<T>>(a));
  }
};
struct Abs {
  template <class T>
  T operator()(T a) const {
    if constexpr (is_float<T>)
      return std::fabs(a);
    else
      return static_cast<T>(a < 0 ? 0 - static_cast<Unsigned<T>>(a) : static_cast<Unsigned<T>>(a));
  }
};
struct Move {
  template <class T>
  T operator()(T a) const {
    return a;
  }
};
/// Left shift. A shift by the width of the type or more leaves 0.
struct Shl {
  template <class T>
  T operator()(T a, uint32_t n) const {
    return n >= sizeof(T) * 8 ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << n);
  }
};
struct Shr {
  template <class T>
  T operator()(T a, uint32_t n) const {
    const uint32_t most = sizeof(T) * 8 - 1;
    if (n > most) return std::is_signed_v<T> ? static_cast<T>(a >> most) : T{0};
    return static_cast<T>(a >> n);
  }
};
struct MulAdd {
  template <class T>
  T operator()(T a, T b, T c) const {
    return Add()(Mul()(a, b), c);
  }
};
template <class W>
struct MulWideAdd {
  template <class T>
  W operator()(T a, T b, W c) const {
    return Add()(MulWide<W>()(a, b), c);
  }
};
struct MulHighAdd {
  template <class T>
  T operator()(T a, T b, T c) const {
    return Add()(MulHigh()(a, b), c);
  }
};
struct Fma {
  template <class T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};
struct CopySign {
  template <class T>
  T operator()(T sign, T value) const {
    return std::copysign(value, sign);
  }
};
struct Popc {
  template <class T>
  uint32_t operator()(T a) const {
    return static_cast<uint32_t>(std::popcount(a));
  }
};
struct Clz {
  template <class T>
  uint32_t operator()(T a) const {
    return static_cast<uint32_t>(std::countl_zero(a));
  }
};
struct Brev {
  uint32_t operator()(uint32_t a) const {
    uint32_t r = 0;
    for (int i = 0; i < 32; ++i) r |= (a >> i & 1) << (31 - i);
    return r;
  }
};

/// Computes a sum or product in higher precision, then rounds it in the requested mode.
template <class T>
float toward(long double exact) {
  auto nearest = static_cast<float>(exact);
  if (T::is_down(static_cast<long double>(nearest), exact)) return nearest;
  return std::nextafter(nearest, T::kTo(exact));
}
struct Down {
  static bool is_down(long double r, long double exact) { return !(r > exact); }
  static float kTo(long double) { return -std::numeric_limits<float>::infinity(); }
};
struct Zero {
  static bool is_down(long double r, long double exact) { return !(std::fabs(r) > std::fabs(exact)); }
  static float kTo(long double) { return 0; }
};
struct FmaDown {
  float operator()(float a, float b, float c) const { return toward<Down>(static_cast<long double>(a) * b + c); }
};
struct AddZero {
  float operator()(float a, float b) const { return toward<Zero>(static_cast<long double>(a) + b); }
};

inline float flushed(float v) { return std::fabs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v; }
struct Ex2 {
  float operator()(float a) const { return std::exp2(a); }
};
struct Ex2Flush {
  float operator()(float a) const { return flushed(std::exp2(flushed(a))); }
};
struct Lg2 {
  float operator()(float a) const { return std::log2(a); }
};
struct Sin {
  float operator()(float a) const { return std::sin(a); }
};
struct Cos {
  float operator()(float a) const { return std::cos(a); }
};
struct Tanh {
  float operator()(float a) const { return std::tanh(a); }
};
struct Rsqrt {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(1.0 / std::sqrt(static_cast<double>(a)));
  }
};
struct Sqrt {
  template <class T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
struct Rcp {
  template <class T>
  T operator()(T a) const {
    return T{1} / a;
  }
};
struct RcpFlush {
  float operator()(float a) const { return flushed(1.0f / flushed(a)); }
};
/// Approximates a reciprocal from the upper 32 bits of the f64, as rcp.approx.ftz.f64 does.
struct RcpCoarse {
  double operator()(double a) const {
    return std::bit_cast<double>(std::bit_cast<uint64_t>(1.0 / a) & 0xffffffff00000000u);
  }
};

struct Eq {
  template <class T>
  bool operator()(T a, T b) const {
    return a == b;
  }
};
struct Ne {
  template <class T>
  bool operator()(T a, T b) const {
    return is_float<T> ? (a < b || a > b) : a != b;
  }
};
struct Lt {
  template <class T>
  bool operator()(T a, T b) const {
    return a < b;
  }
};
struct Le {
  template <class T>
  bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct Gt {
  template <class T>
  bool operator()(T a, T b) const {
    return a > b;
  }
};
struct Ge {
  template <class T>
  bool operator()(T a, T b) const {
    return a >= b;
  }
};
/// The same comparison, which is also true if an operand is NaN.
template <class C>
struct OrNan {
  template <class T>
  bool operator()(T a, T b) const {
    return C()(a, b) || a != a || b != b;
  }
};
struct BothNumbers {
  template <class T>
  bool operator()(T a, T b) const {
    return a == a && b == b;
  }
};
struct AnyNan {
  template <class T>
  bool operator()(T a, T b) const {
    return a != a || b != b;
  }
};

}  // namespace trainctl::emulator
