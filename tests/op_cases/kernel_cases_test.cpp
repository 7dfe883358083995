// Runs every call of the families' kernel cases on the CPU.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/op_cases/kernel_case_run.h"
#include "tests/skip.h"

namespace trainctl {

TEST_CASE(
    "a kernel that only compiled programs use has the results of the naive loop in double, in one run and in three") {
  if (kernel_cases().empty()) skip_test("TRAINCTL_OP_CASES names no family with calls of kernels");
  for (const KernelCase& row : kernel_cases()) {
    CAPTURE(row.name());
    const KernelCaseRun run(row);
    for (const int times : {1, 3}) {
      const Results expected = run.naive(times);
      const Results got = run.on(cpu_device(), row.f32_on_cpu, times);
      REQUIRE(got.size() == expected.size());
      for (size_t o = 0; o < got.size(); ++o) {
        CAPTURE(o);
        CHECK(worst_part(got[o], expected[o]) <= std::max(row.tolerance, 5e-6));
      }
    }
  }
}

}  // namespace trainctl
