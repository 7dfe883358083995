// Llama-shaped jobs that are short of memory: auto_parallel compared with other plans, and properties of the search.
// TRAINCTL_LLAMA_JOBS: number of drawn jobs (`./bootstrap soak` draws 40). TRAINCTL_LLAMA_FIRST: number of the first
// one.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/base/text.h"
#include "tests/search/drawn_jobs.h"
#include "tests/search/llama_jobs.h"

using namespace trainctl;

namespace {

LlamaShape drawn_shape(std::mt19937& random) {
  const int heads = one_of<int>(random, {8, 16, 32});
  LlamaShape shape{.blocks = one_of<int>(random, {9, 12, 16, 24}), .heads = heads};
  shape.units = heads * 128;
  shape.hidden = one_of<int>(random, {3, 4}) * shape.units;
  shape.kv_heads = one_of<int>(random, {heads / 4, heads});
  shape.length = one_of<int>(random, {2048, 4096, 8192});
  shape.batch = one_of<int>(random, {4, 8, 16});
  return shape;
}

/// Settings that a user would write for such a job.
std::vector<std::string> drawn_settings(std::mt19937& random, int blocks) {
  const int some = pick(random, 1, blocks - 1);
  const int stages = one_of<int>(random, {1, 1, 1, 1, 2});
  const int tensor = one_of<int>(random, {1, 1, 1, 2, 4}), rest = 4 / stages;
  std::vector<std::string> settings = {
      "parallel.mode=semi_auto_parallel", fmt::format("parallel.stages={}", stages),
      fmt::format("parallel.micro_batches={}", one_of<int>(random, {1, 1, 2, 4})),
      fmt::format("parallel.optimizer_shard={}", one_of<int>(random, {1, 2, 3, 3})),
      "parallel.recompute=" +
          one_of<std::string>(
              random, {"[]", "['h.*']", "['h.*.norm*', 'h.*.act', 'h.*.gated', 'h.*.sum1']",
                       "['h.*.norm*', 'h.*.act', 'h.*.gated', 'h.*.sum1', 'h.*.qkv', 'h.*.turn']",
                       fmt::format("['h.{{0-{}}}.*']", some - 1),
                       fmt::format("['h.{{0-{0}}}.norm*', 'h.{{0-{0}}}.act', 'h.{{0-{0}}}.gated']", some - 1)})};
  if (tensor > 1 && tensor <= rest) settings.push_back(fmt::format("parallel.tensor={}", tensor));
  return settings;
}

}  // namespace

TEST_CASE("llama: under a memory limit auto_parallel is within 2 % of the best of 20 other plans") {
  const int first = from_environment("TRAINCTL_LLAMA_FIRST", 0), jobs = from_environment("TRAINCTL_LLAMA_JOBS", 1);
  for (int job = first; job < first + jobs; ++job) {
    CAPTURE(job);
    std::mt19937 random(44 + static_cast<unsigned>(job));
    const LlamaShape shape = drawn_shape(random);
    const std::string text = llama(shape);
    const std::optional<Outcome> free = found_for(text, {"parallel.max_memory=1TiB"});
    REQUIRE(free);
    const int64_t limit = free->memory * pick(random, 45, 95) / 100;
    const std::string max_memory = "parallel.max_memory=" + std::to_string(limit);
    const std::optional<Outcome> found = found_for(text, {max_memory});
    CAPTURE(text);
    CAPTURE(max_memory);
    double best = 0;
    std::string best_settings;
    int compared = 0;
    for (int tries = 0; compared < 20 && tries < 40; ++tries) {
      const std::vector<std::string> settings = drawn_settings(random, shape.blocks);
      const std::optional<Outcome> other = outcome_of(text, settings);
      if (!other) continue;
      ++compared;
      if (other->memory > limit || (best > 0 && other->seconds >= best)) continue;
      best = other->seconds;
      best_settings = join(settings, " ");
    }
    CAPTURE(best_settings);
    if (best > 0) {
      REQUIRE(found);
      CHECK(found->memory <= limit);
      CHECK(found->seconds <= 1.02 * best);
    }
  }
}

TEST_CASE("llama: more memory and fewer constraints never cost more than 0.6 %") {
  const std::string text = llama({.blocks = 12, .batch = 16});
  const std::optional<Outcome> free = found_for(text, {"parallel.max_memory=1TiB"});
  REQUIRE(free);
  double before = free->seconds;
  for (const int percent : {90, 75, 50}) {
    CAPTURE(percent);
    const std::string limit = "parallel.max_memory=" + std::to_string(free->memory * percent / 100);
    const std::optional<Outcome> found = found_for(text, {limit});
    if (!found) break;
    CHECK(found->seconds >= before / kSlack);
    before = std::max(before, found->seconds);
    if (percent != 75) continue;
    for (const char* constraint :
         {"parallel.stages=1", "parallel.optimizer_shard=3", "parallel.micro_batches=2", "parallel.micro_batches=1",
          "parallel.recompute=[]", "parallel.recompute=['h.*.norm*', 'h.*.act', 'h.*.gated', 'h.*.sum1']"}) {
      CAPTURE(constraint);
      const std::optional<Outcome> constrained = found_for(text, {limit, constraint});
      if (constrained) CHECK(constrained->seconds >= found->seconds / kSlack);
    }
  }
}

TEST_CASE("llama: a plan that offloads activations is found if it fits and is faster than those that recompute more") {
  const std::string text = llama({.blocks = 12,
                                  .units = 4096,
                                  .hidden = 16384,
                                  .heads = 32,
                                  .kv_heads = 8,
                                  .length = 8192,
                                  .batch = 4,
                                  .ranks = 4,
                                  .window = 1024});
  Machine machine = *find_machine("h100x8");
  machine.devices = machine.links[0].devices = 2;
  const MachineFile two_hosts(machine);
  const std::optional<Outcome> offloading =
      outcome_of(text, {two_hosts.setting(), "parallel.mode=semi_auto_parallel", "parallel.optimizer_shard=3",
                        "parallel.offload={activations: ['*']}",
                        "parallel.recompute=['h.*.norm*', 'h.*.qkv', 'h.*.turn', 'h.*.attn', 'h.*.sum1', 'h.*.act', "
                        "'h.*.gated']"});
  REQUIRE(offloading);
  const int64_t limit = offloading->memory + offloading->memory / 200;
  const std::optional<Outcome> found =
      found_for(text, {two_hosts.setting(), fmt::format("parallel.max_memory={}", limit)});
  REQUIRE(found);
  CHECK(found->memory <= limit);
  CHECK(found->seconds <= kSlack * offloading->seconds);
}
