// Tests when replicas that train local steps synchronize.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "engine/spec/replicas.h"

using namespace trainctl;

namespace {

std::vector<int64_t> ends_until(const ParallelSpec& parallel, int64_t steps) {
  std::vector<int64_t> ends;
  for (int64_t end = end_of_round(parallel, 0); end <= steps; end = end_of_round(parallel, end)) ends.push_back(end);
  return ends;
}

}  // namespace

TEST_CASE("rounds of local steps grow by their share of the steps before them, up to local_steps") {
  ParallelSpec parallel;
  parallel.local_steps = 8;
  parallel.outer.round_growth = 0.5;
  CHECK(ends_until(parallel, 40) == std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40});
  parallel.outer.round_growth = 0;
  CHECK(ends_until(parallel, 40) == std::vector<int64_t>{8, 16, 24, 32, 40});
}

TEST_CASE("replicas synchronize at each multiple of local_steps, and once more after the last step") {
  for (const int64_t local : {1, 3, 64, 500}) {
    for (const double growth : {0.0, 0.1, 0.25, 3.0}) {
      CAPTURE(local);
      CAPTURE(growth);
      ParallelSpec parallel;
      parallel.local_steps = local;
      parallel.outer.round_growth = growth;
      const std::vector<int64_t> ends = ends_until(parallel, 4000);
      int64_t multiples = 0;
      for (const int64_t end : ends) multiples += end % local == 0 ? 1 : 0;
      CHECK(multiples == 4000 / local);
      const auto rounds = static_cast<int64_t>(ends.size()) + (ends.back() < 4000 ? 1 : 0);
      CHECK(rounds_until(parallel, 4000) == rounds);
    }
  }
}

TEST_CASE("the default rounds of 64 local steps exchange 50 times fewer bytes than gradients in 1,000 steps") {
  ParallelSpec parallel;
  parallel.local_steps = 64;
  CHECK(parallel.outer.precision == Precision::bf16);  // half the bytes of a gradient
  CHECK(2 * 1000 / rounds_until(parallel, 1000) >= 50);
}
