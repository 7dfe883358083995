// A step allocates nothing: neither the executor, the kernels, the communicator nor the loader's thread.
#include <doctest/doctest.h>

#include <barrier>

#include "engine/planning/compile_job.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/trainer/trainer.h"
#include "tests/equivalence/allocations/count_allocations.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/jobs/jobs.h"
#include "tests/skip.h"

using namespace trainctl;

namespace {

constexpr int64_t kSteps = 25;  ///< several epochs

/// Allocations of all ranks together, in steps 2 to the last. dataset.autotune is off because it allocates more
/// batches when a step waits for data.
AllocationCounts count_in_steps(const PlanCase& plan) {
  std::vector<std::string> overrides = plan.same;
  overrides.insert(overrides.end(), plan.plan.begin(), plan.plan.end());
  overrides.emplace_back("dataset.autotune=false");
  overrides.push_back("train={steps: " + std::to_string(kSteps) + "}");
  const PlannedJob job = plan_job(job_spec(plan.job, overrides));
  const std::vector<Program> programs = compile_all(job);
  AllocationCounts counts;
  std::barrier together(static_cast<std::ptrdiff_t>(programs.size()));
  run_ranks(programs, [&](int rank, std::unique_ptr<Communicator> comm, std::span<std::byte> arena) {
    try {
      Trainer trainer(job, programs[static_cast<size_t>(rank)], *comm, {}, {.arena = arena});
      trainer.run_step();
      together.arrive_and_wait();
      if (rank == 0) start_counting_allocations();
      together.arrive_and_wait();
      while (!trainer.done()) trainer.run_step();
      together.arrive_and_wait();
      if (rank == 0) counts = stop_counting_allocations();
      together.arrive_and_wait();
    } catch (...) {
      together.arrive_and_drop();  // or the others would wait for ever
      throw;
    }
  });
  return counts;
}

bool can_count() {
  if (!can_count_allocations()) skip_test("a sanitizer replaces malloc itself");
  return can_count_allocations();
}

}  // namespace

TEST_CASE("the counter counts") {
  if (!can_count()) return;
  start_counting_allocations();
  auto value = std::make_unique<std::string>(100, 'x');
  const AllocationCounts counts = stop_counting_allocations();
  CHECK(value->size() == 100);
  CHECK(counts.ours == 2);
}

TEST_CASE("a step allocates nothing, whatever the plan") {
  if (!can_count()) return;
  int64_t inside_libraries = 0;
  for (const PlanCase& plan : plan_cases()) {
    CAPTURE(plan.name);
    const AllocationCounts counts = count_in_steps(plan);
    CHECK(counts.ours == 0);
    inside_libraries += counts.libraries;
  }
  MESSAGE("allocations by oneDNN's and OpenMP's own code, over all plans and ", kSteps - 1,
          " steps each: ", inside_libraries);
}
