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

namespace {

Job with_offloaded_activations(const std::string& name, std::vector<std::string> overrides) {
  overrides.emplace_back("parallel.offload={activations: ['*']}");
  return job(name, std::move(overrides));
}

bool is_copy_to_host(const Instruction& i) { return i.opcode == Opcode::copy && i.stream == Stream::to_host; }

}  // namespace

TEST_CASE("an offloaded activation leaves after its forward use and comes back before its backward use") {
  const Job j = with_offloaded_activations("gpt", {});
  const Program p = compile(j.graph, j.plan, CostModel(), 0);
  size_t copies = 0;
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& out = p.instructions[i];
    if (!is_copy_to_host(out)) continue;
    ++copies;
    CAPTURE(out.name);
    const auto back = std::find_if(
        p.instructions.begin() + static_cast<std::ptrdiff_t>(i), p.instructions.end(), [&](const Instruction& code) {
          return code.opcode == Opcode::copy && code.inputs[0].offset == out.outputs[0].offset;
        });
    REQUIRE(back != p.instructions.end());
    CHECK(back->outputs[0].tensor == out.inputs[0].tensor);
    CHECK(back->stream == Stream::from_host);
    for (auto between = p.instructions.begin() + static_cast<std::ptrdiff_t>(i) + 1; between != back; ++between)
      for (const Operand& read : between->inputs)
        if (between->opcode == Opcode::kernel) CHECK(read.tensor != out.inputs[0].tensor);
  }
  CHECK(copies > 3);
}

TEST_CASE("offloaded activations take less of the arena, and as much of the host as they need at a time") {
  const Job j = with_offloaded_activations("gpt", {"vars.layers=8"}), kept = job("gpt", {"vars.layers=8"});
  const Program host = compile(j.graph, j.plan, CostModel(), 0),
                device = compile(kept.graph, kept.plan, CostModel(), 0);
  int64_t copied = 0;
  for (const Instruction& i : host.instructions) copied += is_copy_to_host(i) ? i.bytes() : 0;
  CHECK(host.memory.host <= copied);
  CHECK(host.memory.host > copied / 2);  // most of them wait at the same time
  CHECK(host.memory.activations < device.memory.activations * 2 / 3);
  CHECK(host.arena_bytes < device.arena_bytes);
}

TEST_CASE("programs with offloaded activations are proved for every schedule, level and recompute") {
  for (const std::vector<std::string>& overrides :
       product({{"parallel.stages=1", "parallel.stages=2"},
                {"parallel.schedule=1f1b", "parallel.schedule=gpipe", "parallel.schedule=zero_bubble"},
                {"parallel.optimizer_shard={level: 0}", "parallel.optimizer_shard={level: 3, min_kb: 0}"},
                {"", "parallel.recompute=['h.*']", "precision=bf16"}})) {
    std::vector<std::string> all = {"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.micro_batches=4"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const Job j = with_offloaded_activations("gpt", all);
    const RankClasses classes = compile_classes(j.graph, j.plan, CostModel());
    CHECK(
        std::any_of(classes.programs[0].instructions.begin(), classes.programs[0].instructions.end(), is_copy_to_host));
  }
}

TEST_CASE("only activations of the layers that are named are offloaded") {
  const Job j = job("gpt", {"parallel.offload={activations: ['h.*.act', h.0.ln1]}"});
  const Program p = compile(j.graph, j.plan, CostModel(), 0);
  for (const Instruction& i : p.instructions)
    if (i.opcode == Opcode::copy)
      CHECK((i.inputs[0].tensor.find(".act") != std::string::npos || i.inputs[0].tensor.starts_with("h.0.ln1")));
}
