// Vectorisable single-precision functions and sums for the CPU kernels. They are branch-free, so that the compiler
// vectorises a plain loop over them; each is within 3 ulp of the double function (tests/op_cases).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

/// A function whose loops are compiled for AVX-512 too, which is chosen at run time where the processor has it. Both
/// give the same bits. Sanitizers do not support the choice.
#if defined(__x86_64__) && defined(__AVX2__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TRAINCTL_WIDE_LOOPS __attribute__((target_clones("default", "arch=x86-64-v4")))
#else
#define TRAINCTL_WIDE_LOOPS
#endif

namespace trainctl::cpu {

// A NaN stays a NaN in both: it fails the comparison.
inline float at_least(float x, float low) { return x < low ? low : x; }
inline float at_most(float x, float high) { return x > high ? high : x; }

/// e^x: 2^n * e^r with |r| <= ln2/2 and the polynomial of Cephes' expf. 0 below -87.3, 3.4e38 above 88.7.
inline float exp(float x) {
  const float bounded = at_least(at_most(x, 88.72283f), -87.33654f);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float shifted = bounded * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two steps: 2^128 is not a float.
  const int32_t k = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound));
  const int32_t half = k >> 1;
  const float scale_a = std::bit_cast<float>((half + 127) << 23);
  const float scale_b = std::bit_cast<float>((k - half + 127) << 23);
  return p * scale_a * scale_b;
}

/// ln x: e ln2 + ln m with m in [sqrt(1/2), sqrt(2)) and the polynomial of Cephes' logf. -inf at 0, NaN below.
inline float log(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const bool tiny = x < std::numeric_limits<float>::min();  // a subnormal number has no exponent of its own
  const int32_t bits = std::bit_cast<int32_t>(tiny ? x * 8388608.0f : x);
  const int32_t k = (bits - 0x3f3504f3) >> 23;
  const float e = static_cast<float>(k) - (tiny ? 23.0f : 0.0f);
  const float f = std::bit_cast<float>(bits - (k << 23)) - 1.0f, z = f * f;
  float p = 7.0376836292e-2f;
  p = p * f + -1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f + -1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f + -1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f + -2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const float low = (p * f * z - 2.12194440e-4f * e) - 0.5f * z;
  const float finite = (f + low) + 0.693359375f * e;
  const float positive = x < kInfinity ? finite : x;
  const float at_most_0 = x == 0.0f ? -kInfinity : kNan;
  return x > 0.0f ? positive : at_most_0;
}

/// ln(1 + x) for x >= 0: what 1 + x rounds off is added.
inline float log1p(float x) {
  const float u = 1.0f + x;
  return log(u) + (x - (u - 1.0f)) / u;
}

/// The rational approximation of Eigen (ptanh): odd/even polynomials of x.
inline float tanh(float x) {
  const float c = at_least(at_most(x, 7.90531110763549805f), -7.90531110763549805f);
  const float s = c * c;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return c * p / q;
}

/// The rational approximation of Eigen (perf).
inline float erf(float x) {
  const float c = at_least(at_most(x, 4.0f), -4.0f);
  const float s = c * c;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s + -2.10102402082508e-06f;
  p = p * s + -5.69250639462346e-05f;
  p = p * s + -7.34990630326855e-04f;
  p = p * s + -2.95459980854025e-03f;
  p = p * s + -1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s + -2.13374055278905e-04f;
  q = q * s + -1.68282697438203e-03f;
  q = q * s + -7.37332916720468e-03f;
  q = q * s + -1.42647390514189e-02f;
  return c * p / q;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

/// The largest of n > 0 elements.
inline float largest(const float* x, int64_t n) {
  constexpr int kLanes = 16;
  float top = x[0];
  int64_t i = 0;
  if (n >= kLanes) {
    float lane[kLanes];
    for (int j = 0; j < kLanes; ++j) lane[j] = x[j];
    for (i = kLanes; i + kLanes <= n; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) lane[j] = at_least(lane[j], x[i + j]);
    }
    for (int j = 0; j < kLanes; ++j) top = at_least(top, lane[j]);
  }
  for (; i < n; ++i) top = at_least(top, x[i]);
  return top;
}

/// sum of f(i) over [0, n) in double, in 16 lanes: a SIMD sum so exact that splitting the range does not show in f32.
template <class F>
inline double sum(int64_t n, F f) {
  constexpr int kLanes = 16;
  double lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lane[j] += f(i + j);
  }
  double total = 0;
  for (; i < n; ++i) total += f(i);
  for (int j = 0; j < kLanes; ++j) total += lane[j];
  return total;
}

}  // namespace trainctl::cpu
