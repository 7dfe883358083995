// Optimizer state in the memory of the host (parallel.offload).
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "engine/compile/compile.h"
#include "engine/compile/rank_classes.h"
#include "tests/compile/jobs.h"

using namespace trainctl;

namespace {

Job offloaded(const std::string& level) {
  Job j = job("language", {"launch.ranks=2", "parallel.mode=data_parallel",
                           "parallel.optimizer_shard={min_kb: 0, level: " + level + "}"});
  j.plan.offloads_optimizer = true;
  return j;
}

}  // namespace

TEST_CASE("offloaded optimizer state is not in the arena, and only updates access it") {
  for (const char* level : {"0", "1", "3"}) {
    CAPTURE(level);
    Job j = offloaded(level);
    const Program host = compile(j.graph, j.plan, CostModel(), 0);
    j.plan.offloads_optimizer = false;
    const Program device = compile(j.graph, j.plan, CostModel(), 0);
    CHECK(host.memory.host >= device.memory.optimizer);
    CHECK(host.memory.optimizer == 0);
    CHECK(host.arena_bytes + host.memory.host == device.arena_bytes);
    for (const Bucket& bucket : host.buckets)
      for (const int64_t offset : bucket.optimizer_offsets) CHECK(is_host_offset(offset));
    for (const Instruction& i : host.instructions) {
      const bool reads_host =
          std::any_of(i.outputs.begin(), i.outputs.end(), [](const Operand& o) { return is_host_offset(o.offset); });
      CHECK(reads_host == is_update(i));
    }
  }
}

TEST_CASE("programs with offloaded optimizer state are proved") {
  const Job j = offloaded("1");
  CHECK_NOTHROW(compile_classes(j.graph, j.plan, CostModel()));
}

TEST_CASE("ranks on CPUs have no other memory to offload to") {
  const Job j = job("language", {"parallel.offload={optimizer: host}"});
  CHECK_FALSE(j.plan.offloads_optimizer);
  CHECK(std::any_of(j.plan.notes.begin(), j.plan.notes.end(),
                    [](const std::string& note) { return note.starts_with("parallel.offload has no effect"); }));
}
