// Cards of one model report different numbers of clusters that run at once, because other multiprocessors are disabled.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <optional>
#include <random>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/matmul/product_cuda.h"
#include "tests/skip.h"
#include "tools/cuda_emulator/device_limits.h"

namespace trainctl {

bool built_for_hopper();  // engine/ops/cuda/launch_cuda.h, whose types hide names of the graph

namespace {

/// The driver reports at most this many clusters as long as this object exists.
class MostClusters {
 public:
  explicit MostClusters(int most) { emulator::most_clusters = most; }
  ~MostClusters() { emulator::most_clusters = before_; }
  MostClusters(const MostClusters&) = delete;
  MostClusters& operator=(const MostClusters&) = delete;

 private:
  const int before_ = emulator::most_clusters;
};

/// Device memory of `n` numbers.
class Numbers {
 public:
  explicit Numbers(size_t n, uint32_t seed) : values_(n) {
    std::minstd_rand random(seed);
    for (float& v : values_) v = std::uniform_real_distribution<float>(-1, 1)(random);
    REQUIRE(cudaMalloc(&memory_, n * sizeof(float)) == cudaSuccess);
    REQUIRE(cudaMemcpy(memory_, values_.data(), n * sizeof(float), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~Numbers() { cudaFree(memory_); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  float* memory() const { return static_cast<float*>(memory_); }
  std::vector<float> read() {
    REQUIRE(cudaMemcpy(values_.data(), memory_, values_.size() * sizeof(float), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values_;
  }

 private:
  std::vector<float> values_;
  void* memory_ = nullptr;
};

/// A product whose sums are split over the blocks of clusters.
std::vector<float> computed_product() {
  constexpr size_t kRows = 64, kTerms = 256;
  Numbers a(kRows * kTerms, 1), b(kTerms * kRows, 2), c(kRows * kRows, 3);
  const std::optional<CudaKernel> kernel =
      cuda::prepare_tile({.m = kRows, .n = kRows, .k = kTerms, .a = a.memory(), .b = b.memory(), .c = c.memory()});
  REQUIRE(kernel.has_value());
  (*kernel)(nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  return c.read();
}

}  // namespace

TEST_CASE("a product has the same bits on a card that runs fewer clusters at once") {
  if (!built_for_hopper()) return skip_test("only Hopper has clusters");
  const std::vector<float> expected = computed_product();
  for (const int clusters : {1, 3}) {
    const MostClusters card(clusters);
    CHECK(computed_product() == expected);
  }
}

TEST_CASE("a card that runs no clusters is an error that names the setting, and no reason to add in another order") {
  if (!built_for_hopper()) return skip_test("only Hopper has clusters");
  const MostClusters card(0);
  CHECK_THROWS_WITH_AS(computed_product(), doctest::Contains("set TRAINCTL_SMALL_STEP=off for all ranks"), EnvError);
}

}  // namespace trainctl
