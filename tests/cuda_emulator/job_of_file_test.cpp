// tests/random_jobs runs its jobs on the emulated GPU by this case, a process a job.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

#include "tests/equivalence/harness.h"

using namespace trainctl;

TEST_CASE("the job of the file TRAINCTL_JOB writes its losses to the file TRAINCTL_LOSSES") {
  const char *job = std::getenv("TRAINCTL_JOB"), *losses = std::getenv("TRAINCTL_LOSSES");
  if (job == nullptr || losses == nullptr) return;
  std::ifstream file(job);
  REQUIRE(file.good());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const RunResult result = run_job(text, {}, {.cuda = true});
  std::ofstream out(losses);
  out.precision(std::numeric_limits<float>::max_digits10);
  for (size_t i = 0; i < result.losses.size(); ++i) {
    out << "{\"run_step\": " << i + 1 << ", \"loss\": \"" << result.losses[i] << "\"}\n";
  }
}
