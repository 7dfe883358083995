// Numbers with a unit, so that bytes are not taken for seconds: Bytes / BytesPerSecond is Seconds.
#pragma once

#include <compare>

namespace trainctl {

template <class Unit>
struct Quantity {
  double value = 0;

  friend auto operator<=>(const Quantity&, const Quantity&) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return {a.value + b.value}; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return {a.value - b.value}; }
  friend constexpr Quantity operator*(double times, Quantity a) { return {times * a.value}; }
  friend constexpr Quantity operator*(Quantity a, double times) { return {times * a.value}; }
  friend constexpr Quantity operator/(Quantity a, double parts) { return {a.value / parts}; }
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value / b.value; }
  Quantity& operator+=(Quantity other) { return *this = *this + other; }
  Quantity& operator-=(Quantity other) { return *this = *this - other; }
};

struct SecondUnit {};
template <class Unit>
struct PerSecond {};

using Seconds = Quantity<SecondUnit>;
using Bytes = Quantity<struct ByteUnit>;
using Flops = Quantity<struct FlopUnit>;
using BytesPerSecond = Quantity<PerSecond<struct ByteUnit>>;
using FlopsPerSecond = Quantity<PerSecond<struct FlopUnit>>;

template <class Unit>
constexpr Seconds operator/(Quantity<Unit> amount, Quantity<PerSecond<Unit>> rate) {
  return {amount.value / rate.value};
}

}  // namespace trainctl
