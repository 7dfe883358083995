// Cards of one model report different numbers of clusters that run at once, because other multiprocessors are disabled.
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/ops/matmul/measure_product_cuda.h"
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

/// A digest of a product whose sums are split over the blocks of clusters.
uint64_t bits_of_product() {
  cuda::Product p{.m = 64, .n = 64, .k = 256};
  cuda::ProductTrial trial(p, 0);
  const std::optional<CudaKernel> kernel = cuda::prepare_tile(trial.product());
  REQUIRE(kernel.has_value());
  const auto bits = trial.bits([&](const void*, const void*, void*, CudaStream stream) {
    (*kernel)(stream);
    return true;
  });
  REQUIRE(bits.has_value());
  return *bits;
}

}  // namespace

TEST_CASE("a product has the same bits on a card that runs fewer clusters at once") {
  if (!built_for_hopper()) return skip_test("only Hopper has clusters");
  const uint64_t expected = bits_of_product();
  for (const int clusters : {1, 3}) {
    const MostClusters card(clusters);
    CHECK(bits_of_product() == expected);
  }
}

TEST_CASE("a card that runs no clusters is an error that names the setting, and no reason to add in another order") {
  if (!built_for_hopper()) return skip_test("only Hopper has clusters");
  const MostClusters card(0);
  CHECK_THROWS_WITH_AS(bits_of_product(), doctest::Contains("set TRAINCTL_SMALL_STEP=off for all ranks"), EnvError);
}

}  // namespace trainctl
