// Tests of matrix products with shapes that reach each path of the register tiles, in every instruction set of this
// processor and in oneDNN, against a loop in double.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "engine/base/text.h"
#include "engine/ops/matmul/product_cpu.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

struct Sizes {
  int64_t m, n, k;
};

// The sizes have single rows and columns, partial vectors, all tile heights, and more than one block of rows and of k.
const Sizes kSizes[] = {{1, 1, 1},     {1, 64, 3},    {5, 1, 33},     {4, 40, 47},    {12, 12, 12},  {13, 13, 13},
                        {16, 32, 8},   {17, 33, 70},  {31, 95, 17},   {29, 128, 64},  {100, 53, 80}, {7, 2100, 9},
                        {60, 600, 70}, {300, 20, 40}, {20, 70, 4000}, {290, 48, 700}, {96, 130, 300}};

std::vector<float> random_values(int64_t n, uint64_t key) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2.0f * philox_uniform(key, i, 0) - 1.0f;
  return values;
}

struct Variant {
  bool transpose_a, transpose_b, bias, relu, accumulate;
};

constexpr float kProductBefore = 0.5f;

double expected_at(const cpu::Product& p, int64_t r, int64_t c) {
  double sum = p.bias != nullptr ? p.bias[c] : 0.0;
  for (int64_t i = 0; i < p.k; ++i) {
    const double a = p.transpose_a ? p.a[i * p.m + r] : p.a[r * p.k + i];
    const double b = p.transpose_b ? p.b[c * p.k + i] : p.b[i * p.n + c];
    sum += a * b;
  }
  if (p.accumulate) sum += kProductBefore;
  return p.relu ? std::max(sum, 0.0) : sum;
}

using Make = CpuKernel (*)(const cpu::Product&);

/// A kernel with a fixed instruction set, independent of the processor's default.
template <const cpu::Tiles* (*kTiles)()>
CpuKernel prepare_with(const cpu::Product& product) {
  cpu::Product p = product;
  p.a_row = p.transpose_a ? p.m : p.k;
  p.b_row = p.transpose_b ? p.k : p.n;
  p.c_row = p.n;
  auto scratch = std::make_shared<std::vector<float>>(kTiles()->scratch_floats(p));
  return [p, scratch] { kTiles()->run(p, scratch->data()); };
}

const cpu::Tiles* fours() { return &cpu::tiles_of_fours(); }

void check_products(const char* by, Make make, int threads) {
  for (const Sizes& s : kSizes) {
    const auto a = random_values(s.m * s.k, 1), b = random_values(s.k * s.n, 2), bias = random_values(s.n, 3);
    for (int bits = 0; bits < 32; ++bits) {
      const Variant v{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0};
      if ((v.bias != v.relu) && s.m * s.n * s.k > 100000) continue;  // the large ones only with both or neither
      std::vector<float> c(static_cast<size_t>(s.m * s.n),
                           v.accumulate ? kProductBefore : std::numeric_limits<float>::quiet_NaN());
      cpu::Product p{.m = s.m, .n = s.n, .k = s.k, .a = a.data(), .b = b.data(), .c = c.data()};
      p.transpose_a = v.transpose_a;
      p.transpose_b = v.transpose_b;
      p.bias = v.bias ? bias.data() : nullptr;
      p.relu = v.relu;
      p.accumulate = v.accumulate;
      p.threads = threads;
      make(p)();
      double worst = 0;
      for (int64_t i = 0; i < s.m * s.n; ++i) {
        const double off = std::fabs(c[static_cast<size_t>(i)] - expected_at(p, i / s.n, i % s.n));
        worst = off <= worst ? worst : std::isnan(off) ? INFINITY : off;
      }
      // Each element is a sum of k products of numbers up to 1.
      CHECK_MESSAGE(
          worst <= 1e-6 * (2 + 2 * std::sqrt(static_cast<double>(s.k))),
          fmt::format("{}: [{}, {}] x [{}, {}], transposes {} {}, bias {}, relu {}, accumulate {}: off by {}", by, s.m,
                      s.k, s.k, s.n, v.transpose_a, v.transpose_b, v.bias, v.relu, v.accumulate, worst));
    }
  }
}

}  // namespace

TEST_CASE("matrix products are correct for every shape, transpose and fused step") {
  check_products("chosen", cpu::prepare_product, 1);
  if (cpu::tiles_avx2() != nullptr) check_products("avx2", prepare_with<cpu::tiles_avx2>, 1);
  if (cpu::tiles_avx512() != nullptr) check_products("avx512", prepare_with<cpu::tiles_avx512>, 1);
  check_products("fours", prepare_with<fours>, 1);
}

TEST_CASE("oneDNN's matrix products, for processors without our tiles, are correct too") {
  check_products("oneDNN", cpu::prepare_product_with_onednn, 1);
}

TEST_CASE("threads share a matrix product, rows or columns, without a gap") {
  check_products("3 threads", cpu::prepare_product, 3);
}

TEST_CASE("a matrix product has the same bits with any number of threads") {
  for (const Sizes& s : {Sizes{512, 512, 512}, Sizes{96, 1300, 300}, Sizes{700, 64, 1100}}) {
    const auto a = random_values(s.m * s.k, 1), b = random_values(s.k * s.n, 2);
    for (const auto& [transpose_a, transpose_b] : {std::pair{false, false}, {true, false}, {false, true}}) {
      std::vector<float> first;
      for (const int threads : {1, 2, 3}) {
        std::vector<float> c(static_cast<size_t>(s.m * s.n));
        cpu::Product p{.m = s.m, .n = s.n, .k = s.k, .a = a.data(), .b = b.data(), .c = c.data()};
        p.transpose_a = transpose_a;
        p.transpose_b = transpose_b;
        p.threads = threads;
        cpu::prepare_product(p)();
        if (threads == 1) first = c;
        CHECK_MESSAGE(c == first, fmt::format("[{}, {}] x [{}, {}], transposes {} {}, {} threads", s.m, s.k, s.k, s.n,
                                              transpose_a, transpose_b, threads));
      }
    }
  }
}

TEST_CASE("the scratch memory of a product is enough for one of fewer terms") {
  for (const cpu::Tiles* tiles : {fours(), cpu::tiles_avx2(), cpu::tiles_avx512()}) {
    if (tiles == nullptr) continue;
    for (const bool transpose_a : {false, true}) {
      cpu::Product p{.m = 128, .n = 256, .k = 300, .transpose_a = transpose_a};
      p.a_row = transpose_a ? p.m : p.k;
      p.b_row = p.c_row = p.n;
      const int64_t floats = tiles->scratch_floats(p);
      for (p.k = 1; p.k < 300; ++p.k) CHECK(tiles->scratch_floats(p) <= floats);
    }
  }
}

TEST_CASE("a batch of products shares or steps its right side") {
  for (const bool shared : {false, true}) {
    const int64_t batch = 3, m = 5, n = 18, k = 7;
    const auto a = random_values(batch * m * k, 1), b = random_values((shared ? 1 : batch) * k * n, 2);
    for (Make make : {Make{cpu::prepare_product}, Make{cpu::prepare_product_with_onednn}}) {
      std::vector<float> c(static_cast<size_t>(batch * m * n), std::numeric_limits<float>::quiet_NaN());
      cpu::Product p{.m = m, .n = n, .k = k, .a = a.data(), .b = b.data(), .c = c.data()};
      p.batch = batch;
      p.a_step = m * k;
      p.b_step = shared ? 0 : k * n;
      p.c_step = m * n;
      make(p)();
      for (int64_t i = 0; i < batch; ++i) {
        cpu::Product one = p;
        one.a += i * p.a_step;
        one.b += i * p.b_step;
        for (int64_t e = 0; e < m * n; ++e) {
          CHECK(c[static_cast<size_t>(i * m * n + e)] == doctest::Approx(expected_at(one, e / n, e % n)).epsilon(1e-5));
        }
      }
    }
  }
}

}  // namespace trainctl

namespace trainctl {

TEST_CASE("a product that descends subtracts learning rate times the product, at each run's rate") {
  float rate = 0;
  const std::pair<const char*, Make> makers[] = {{"tiles of this processor", cpu::prepare_product}};
  for (const auto& [by, make] : makers) {
    for (const Sizes& s : kSizes) {
      INFO(by << " m " << s.m << " n " << s.n << " k " << s.k);
      const auto a = random_values(s.m * s.k, 4), b = random_values(s.k * s.n, 5);
      std::vector<float> c(static_cast<size_t>(s.m * s.n), kProductBefore);
      cpu::Product p{.m = s.m, .n = s.n, .k = s.k, .a = a.data(), .b = b.data(), .c = c.data()};
      p.transpose_a = true;
      p.accumulate = true;
      p.descend = &rate;
      const CpuKernel run = make(p);
      double total_rate = 0, worst = 0;
      for (const float step : {0.25f, 0.5f}) {
        rate = step;
        total_rate += step;
        run();
      }
      cpu::Product plain = p;
      plain.accumulate = false;
      for (int64_t r = 0; r < s.m; ++r)
        for (int64_t col = 0; col < s.n; ++col)
          worst = std::max(worst, std::abs(double{c[static_cast<size_t>(r * s.n + col)]} -
                                           (double{kProductBefore} - total_rate * expected_at(plain, r, col))));
      CHECK(worst < 1e-5 * std::sqrt(static_cast<double>(s.k)) + 1e-6);
    }
  }
}

}  // namespace trainctl
