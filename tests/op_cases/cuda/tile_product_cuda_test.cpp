// Tests of products by tiles against float64, with sizes for each kind of tile, with and without clusters and 16-byte
// packs.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "engine/ops/matmul/product_cuda.h"
#include "engine/ops/random.h"
#include "tests/op_cases/cuda/cuda_device.h"

namespace trainctl {
namespace {

using cuda::Product;

void must_launch(cudaError_t status) { REQUIRE_MESSAGE(status == cudaSuccess, cudaGetErrorString(status)); }

/// Floats in device memory, at a multiple of 16 bytes or some floats past it, with a copy of their initial values.
class TileProductFloats {
 public:
  TileProductFloats(int64_t n, uint64_t key, int64_t past) : first(static_cast<size_t>(n)), past_(past) {
    for (int64_t i = 0; i < n; ++i) first[static_cast<size_t>(i)] = 2.0f * philox_uniform(key, i, 0) - 1.0f;
    must_launch(cudaMalloc(&device_, static_cast<size_t>(n + past) * sizeof(float)));
    upload();
  }
  TileProductFloats(const TileProductFloats&) = delete;
  TileProductFloats& operator=(const TileProductFloats&) = delete;
  ~TileProductFloats() { cudaFree(device_); }

  float* data() const { return static_cast<float*>(device_) + past_; }
  void upload() const {
    must_launch(cudaMemcpy(data(), first.data(), first.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  std::vector<float> now() const {
    std::vector<float> values(first.size());
    must_launch(cudaMemcpy(values.data(), data(), values.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return values;
  }

  std::vector<float> first;

 private:
  void* device_ = nullptr;
  int64_t past_;
};

struct Form {
  bool bias = false, relu = false, slope = false, accumulate = false, descend = false, sums = false;
};

/// A product and the memory of its operands.
struct Made {
  Made(Product product, const Form& form, int64_t past)
      : a(product.batch * product.m * product.k, 1, past),
        b(product.batch * product.k * product.n, 2, past),
        c(product.batch * product.m * product.n, 3, past),
        bias(product.n, 4, past),
        at(product.batch * product.m * product.n, 5, past),
        rate(1, 6, 0),
        a_sums(product.m, 7, 0),
        b_sums(product.n, 8, 0),
        p(product) {
    p.a = a.data();
    p.b = b.data();
    p.c = c.data();
    p.a_step = p.m * p.k;
    p.b_step = p.k * p.n;
    p.c_step = p.m * p.n;
    if (form.bias) p.bias = bias.data();
    if (form.relu) p.activation = Activation::relu;
    if (form.slope) p.slope = Activation::relu, p.slope_at = at.data();
    p.accumulate = form.accumulate;
    if (form.descend) p.descend = rate.data();
    p.sums_accumulate = form.accumulate;
    if (form.sums) p.a_sums = a_sums.data(), p.b_sums = b_sums.data();
  }

  void run() const {
    const std::optional<CudaKernel> kernel = cuda::prepare_tile(p);
    REQUIRE(kernel.has_value());
    (*kernel)(nullptr);
    must_launch(cudaDeviceSynchronize());
  }
  double a_of(int64_t z, int64_t i, int64_t k) const {
    return a.first[static_cast<size_t>(z * p.a_step + (p.transpose_a ? k * p.m + i : i * p.k + k))];
  }
  double b_of(int64_t z, int64_t k, int64_t j) const {
    return b.first[static_cast<size_t>(z * p.b_step + (p.transpose_b ? j * p.k + k : k * p.n + j))];
  }
  double stored(double sum, bool accumulate, float before) const {
    return sum * (p.descend != nullptr ? -double{rate.first[0]} : 1.0) + (accumulate ? before : 0.0f);
  }
  /// The largest difference from the expected result, relative to the largest expected value.
  double error() const {
    const std::vector<float> got = c.now();
    double off = 0, size = 1e-30;
    const auto compare = [&](double value, double expected) {
      off = std::isnan(value) ? INFINITY : std::max(off, std::fabs(value - expected));
      size = std::max(size, std::fabs(expected));
    };
    for (int64_t e = 0; e < p.batch * p.c_step; ++e) {
      const int64_t z = e / p.c_step, i = e % p.c_step / p.n, j = e % p.n;
      double sum = 0;
      for (int64_t k = 0; k < p.k; ++k) sum += a_of(z, i, k) * b_of(z, k, j);
      const auto at_e = static_cast<size_t>(e);
      double v =
          stored(sum, p.accumulate, c.first[at_e]) + (p.bias != nullptr ? bias.first[static_cast<size_t>(j)] : 0);
      if (p.activation == Activation::relu) v = std::max(v, 0.0);
      if (p.slope == Activation::relu && !(at.first[at_e] > 0)) v = 0;
      compare(got[at_e], v);
    }
    double worst = off / size;
    if (p.a_sums == nullptr) return worst;
    for (const bool of_a : {true, false}) {
      const TileProductFloats& sums = of_a ? a_sums : b_sums;
      const std::vector<float> now = sums.now();
      off = size = 1e-30;
      for (size_t i = 0; i < now.size(); ++i) {
        double sum = 0;
        const auto at_i = static_cast<int64_t>(i);
        for (int64_t k = 0; k < p.k; ++k) sum += of_a ? a_of(0, at_i, k) : b_of(0, k, at_i);
        compare(now[i], stored(sum, p.sums_accumulate, sums.first[i]));
      }
      worst = std::max(worst, off / size);
    }
    return worst;
  }

  TileProductFloats a, b, c, bias, at, rate, a_sums, b_sums;
  Product p;
};

Product sizes(int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
  Product p{.m = m, .n = n, .k = k};
  p.batch = batch;
  return p;
}

}  // namespace

TEST_CASE("cuda: products by tiles follow float64 in every layout, whatever is done to their sums") {
  if (!gpu_is_here()) return;
  const Form forms[] = {
      {.bias = true, .relu = true},       {.slope = true}, {.accumulate = true, .descend = true, .sums = true},
      {.bias = true, .accumulate = true}, {.sums = true},  {.slope = true, .accumulate = true}};
  size_t form = 0;
  for (const Product& size :
       {sizes(1, 1, 1), sizes(7, 11, 13), sizes(33, 97, 64), sizes(64, 32, 32), sizes(5, 3, 1031), sizes(32, 512, 784),
        sizes(101, 103, 97), sizes(190, 500, 260), sizes(200, 510, 130), sizes(256, 512, 196), sizes(256, 509, 131),
        sizes(33, 65, 257, 3), sizes(64, 64, 600, 40), sizes(37, 68, 4100), sizes(600, 516, 68)}) {
    for (int t = 0; t < 4; ++t) {
      for (const int64_t past : {0, 1}) {
        Product p = size;
        p.transpose_a = (t & 1) != 0;
        p.transpose_b = (t & 2) != 0;
        Form f = forms[form++ % std::size(forms)];
        if (!p.transpose_a || p.transpose_b || p.batch > 1) f.sums = f.descend = false;
        CAPTURE(p.m);
        CAPTURE(p.n);
        CAPTURE(p.k);
        CAPTURE(p.batch);
        CAPTURE(t);
        CAPTURE(past);
        CAPTURE(form);
        const Made made(p, f, past);
        made.run();
        CHECK(made.error() < 2e-6);
        const std::vector<float> once = made.c.now();
        made.c.upload();
        made.run();
        CHECK(made.c.now() == once);
      }
    }
  }
}

TEST_CASE("cuda: products of numbers of very different sizes are off by no more than rounding of their terms") {
  if (!gpu_is_here()) return;
  for (const Product& size : {sizes(64, 48, 40), sizes(40, 48, 300), sizes(256, 512, 196)}) {
    Product p = size;
    p.transpose_b = true;
    Made made(p, {}, 0);
    for (TileProductFloats* of : {&made.a, &made.b}) {
      for (size_t i = 0; i < of->first.size(); ++i)
        of->first[i] = std::ldexp(of->first[i], static_cast<int>(i * 7 % 41) - 20);
      of->upload();
    }
    made.run();
    const std::vector<float> got = made.c.now();
    double worst = 0;
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0, terms = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          sum += made.a_of(0, i, k) * made.b_of(0, k, j);
          terms += std::fabs(made.a_of(0, i, k) * made.b_of(0, k, j));
        }
        worst = std::max(worst, std::fabs(got[static_cast<size_t>(i * p.n + j)] - sum) / terms);
      }
    }
    CHECK(worst < 2e-6);
  }
}

TEST_CASE("cuda: a value that is not finite reaches all of its row of a product, and no other row") {
  if (!gpu_is_here()) return;
  for (const Product& p : {sizes(64, 48, 40), sizes(40, 48, 300), sizes(256, 512, 196)}) {
    Made made(p, {}, 0);
    made.a.first[static_cast<size_t>(3 * p.k + 5)] = std::numeric_limits<float>::quiet_NaN();
    made.a.first[static_cast<size_t>(17 * p.k + p.k - 1)] = std::numeric_limits<float>::infinity();
    made.a.upload();
    made.run();
    const std::vector<float> got = made.c.now();
    for (int64_t e = 0; e < p.m * p.n; ++e) {
      const int64_t row = e / p.n;
      if (std::isfinite(got[static_cast<size_t>(e)]) == (row == 3 || row == 17)) FAIL_CHECK("row " << row);
    }
  }
}

}  // namespace trainctl
