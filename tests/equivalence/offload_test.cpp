// Activations in the memory of the host (parallel.offload.activations): the same program but for the copies, so the
// same bits. On CPUs the copies are within the memory of the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "engine/base/text.h"
#include "tests/equivalence/compare.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

const Overrides kOffload = {"parallel.offload={activations: ['*']}"}, kOffloadShort = {"train={steps: 5}"};

int64_t num_copies(const RunResult& run) {
  int64_t copies = 0;
  for (const Program& program : run.programs)
    copies += std::count_if(program.instructions.begin(), program.instructions.end(),
                            [](const Instruction& i) { return i.opcode == Opcode::copy; });
  return copies;
}

/// Returns the number of copies of all ranks.
int64_t check_same_bits_with_offload(const char* job, const Overrides& overrides) {
  const RunResult plain = run_job(job, overrides), offloaded = run_job(job, overrides + kOffload);
  CHECK(num_copies(plain) == 0);
  CHECK(same_bits(offloaded.losses, plain.losses));
  for (const auto& [name, values] : plain.weights) {
    CAPTURE(name);
    CHECK(same_bits(values, offloaded.weights.at(name)));
  }
  return num_copies(offloaded);
}

}  // namespace

TEST_CASE("activations in the memory of the host give the same bits under every plan") {
  const size_t step = std::getenv("TRAINCTL_TEST_ALL_PLANS") != nullptr ? 1 : 6;
  int64_t copies = 0;
  for (size_t i = 0; i < plan_cases().size(); i += step) {
    const PlanCase& plan = plan_cases()[i];
    CAPTURE(plan.name);
    if (job_spec(plan.job, plan.same + plan.plan).dataset.type == "mnist") continue;
    copies += check_same_bits_with_offload(plan.job, plan.same + plan.plan + kOffloadShort);
  }
  CHECK(copies > 0);
}

TEST_CASE(
    "activations in the memory of the host give the same bits with recompute, stages, micro-batches and contexts") {
  const Overrides deep = {"train={steps: 3}"};
  for (const Overrides& plan : {
           Overrides{},
           {"parallel.micro_batches=2"},
           {"parallel.recompute=['h.*']"},
           {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=4"},
           {"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=2",
            "parallel.schedule=gpipe", "parallel.recompute=['h.*']"},
           {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=4",
            "parallel.schedule=zero_bubble"},
           {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 3, min_kb: 0}"},
           {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.context=2", "parallel.context_method=ring"},
           {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.context=2",
            "parallel.context_method=gather", "parallel.recompute=['h.*']"},
       }) {
    CAPTURE(join(plan));
    CHECK(check_same_bits_with_offload("gpt", plan + deep) > 0);
  }
}
