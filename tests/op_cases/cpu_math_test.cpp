// Compares the vectorisable functions with those of the standard library in double.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "engine/ops/cpu/math_cpu.h"

namespace trainctl {
namespace {

/// The largest relative difference over a grid of [low, high].
double worst_error(float (*f)(float), double (*exact)(double), float low, float high) {
  double worst = 0;
  constexpr int kSteps = 200000;
  for (int i = 0; i <= kSteps; ++i) {
    const float x = low + (high - low) * static_cast<float>(i) / kSteps;
    const double expected = exact(x);
    if (expected == 0) continue;
    worst = std::max(worst, std::fabs(f(x) - expected) / std::fabs(expected));
  }
  return worst;
}

}  // namespace

TEST_CASE("exp, tanh, erf and sigmoid are within 5e-7 of the exact value") {
  CHECK(worst_error(cpu::exp, std::exp, -87.0f, 88.7f) < 2e-7);
  CHECK(worst_error(cpu::tanh, std::tanh, -12.0f, 12.0f) < 5e-7);
  CHECK(worst_error(cpu::tanh, std::tanh, -0.01f, 0.01f) < 5e-7);
  CHECK(worst_error(cpu::erf, std::erf, -6.0f, 6.0f) < 5e-7);
  CHECK(worst_error(cpu::erf, std::erf, -0.01f, 0.01f) < 5e-7);
  CHECK(worst_error(
            cpu::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, -80.0f, 80.0f) < 5e-7);
}

TEST_CASE("log and log1p are within 3e-7 of the exact value, next to their zeros too") {
  for (const float scale : {1e-40f, 1e-30f, 1e-3f, 1.0f, 1e4f, 3e38f})
    CHECK(worst_error(cpu::log, std::log, 0.1f * scale, scale) < 3e-7);
  CHECK(worst_error(cpu::log, std::log, 0.99f, 1.01f) < 3e-7);
  for (const float scale : {1e-30f, 1e-7f, 1e-4f, 1.0f, 100.0f})
    CHECK(worst_error(cpu::log1p, std::log1p, 0.0f, scale) < 3e-7);
  CHECK(cpu::log(0.0f) == -INFINITY);
  CHECK(cpu::log(INFINITY) == INFINITY);
  CHECK(std::isnan(cpu::log(-1.0f)));
}

TEST_CASE("a NaN propagates, and infinities are bounded") {
  for (float (*f)(float) : {cpu::exp, cpu::log, cpu::log1p, cpu::tanh, cpu::erf, cpu::sigmoid})
    CHECK(std::isnan(f(NAN)));
  CHECK(std::isfinite(cpu::exp(INFINITY)));
  CHECK(cpu::exp(-INFINITY) < 2e-38f);
  CHECK(cpu::tanh(INFINITY) == doctest::Approx(1.0));
  CHECK(cpu::sigmoid(-INFINITY) < 1e-37f);
}

TEST_CASE("a sum is as accurate as double, regardless of its length") {
  for (int64_t n : {0, 1, 15, 16, 17, 100003}) {
    const std::vector<float> x(static_cast<size_t>(n), 0.1f);
    CHECK(cpu::sum(n, [&](int64_t i) { return double{x[static_cast<size_t>(i)]}; }) ==
          doctest::Approx(static_cast<double>(n) * double{0.1f}).epsilon(1e-12));
  }
}

}  // namespace trainctl
