// Counters of sums that several blocks split.
#include "engine/ops/small_step/tickets_cuda.h"

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "tests/op_cases/cuda/cuda_device.h"

namespace trainctl {

TEST_CASE("cuda: split sums always get counters, which begin at 0, so they never add in another order") {
  if (!gpu_is_here()) return;
  constexpr int kCounters = 1 << 18;  // the size of the pool
  const Tickets all[] = {take_tickets(kCounters), take_tickets(kCounters), take_tickets(5)};
  std::set<const unsigned*> distinct;
  for (const Tickets& tickets : all) {
    REQUIRE(tickets != nullptr);
    distinct.insert(tickets.get());
    std::vector<unsigned> values(5, 1);
    REQUIRE(cudaMemcpy(values.data(), tickets.get(), values.size() * sizeof(unsigned), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    CHECK(values == std::vector<unsigned>(5, 0));
  }
  CHECK(distinct.size() == 3);
}

}  // namespace trainctl
