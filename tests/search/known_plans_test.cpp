// auto_parallel beside plans that a user would write: data parallel at each level of optimizer_shard, tensor parallel
// and pipelines, each without recompute, with norms or with whole blocks, on 1 to 64 GPUs of one or more hosts.
// TRAINCTL_KNOWN_JOBS: number of drawn jobs (`./bootstrap soak` draws 40). TRAINCTL_KNOWN_FIRST: number of the first.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/base/text.h"
#include "tests/search/drawn_jobs.h"
#include "tests/search/llama_jobs.h"

using namespace trainctl;

namespace {

constexpr double kMostSlower = 1.02;

/// The first job is small and on few ranks, since every check of a change runs it.
LlamaShape shape_on_any_ranks(std::mt19937& random, int job) {
  const int heads = one_of<int>(random, {8, 16, 24});
  LlamaShape shape{.blocks = one_of<int>(random, {2, 5, 8, 12}), .heads = heads};
  shape.units = heads * one_of<int>(random, {64, 96, 128});
  shape.hidden = one_of<int>(random, {2, 3, 4}) * shape.units;
  shape.kv_heads = one_of<int>(random, {heads / 4, heads});
  shape.vocab = one_of<int>(random, {8192, 32000, 128256});
  shape.ranks = one_of<int>(random, job == 0 ? std::vector<int>{2, 4} : std::vector<int>{1, 2, 3, 4, 6, 8, 16, 32, 64});
  shape.length = one_of<int>(random, {512, 2048, 8192});
  shape.batch = std::min(shape.ranks * one_of<int>(random, {1, 2, 4}), 64);  // the job has 64 samples
  if (pick(random, 0, 3) == 0) shape.window = shape.length / 8;
  if (pick(random, 0, 4) == 0) shape.experts = 4;
  return shape;
}

/// Hosts of all ranks, of half of them, or of at most eight.
Machine hosts_of(std::mt19937& random, int ranks) {
  Machine machine = *find_machine(one_of<std::string>(random, {"h100x8", "a100x8", "h200x8"}));
  const int devices = ranks % 2 == 0 && pick(random, 0, 1) == 0 ? ranks / 2 : std::min(ranks, 8);
  machine.devices = machine.links[0].devices = devices;
  return machine;
}

std::vector<std::vector<std::string>> known_plans() {
  std::vector<std::vector<std::string>> all;
  for (const char* recompute : {"[]", "['h.*.norm*']", "['h.*']"})
    for (const int micro_batches : {1, 2, 8}) {
      const auto add = [&](std::vector<std::string> fields) {
        fields.insert(fields.end(), {fmt::format("parallel.recompute={}", recompute),
                                     fmt::format("parallel.micro_batches={}", micro_batches)});
        all.push_back(std::move(fields));
      };
      for (const int level : {0, 1, 2, 3})
        add({"parallel.mode=data_parallel", fmt::format("parallel.optimizer_shard={}", level)});
      for (const int tensor : {2, 4})
        for (const int level : {1, 3})
          add({"parallel.mode=semi_auto_parallel", fmt::format("parallel.tensor={}", tensor),
               fmt::format("parallel.optimizer_shard={}", level)});
      for (const int stages : {2, 4})
        add({"parallel.mode=semi_auto_parallel", fmt::format("parallel.stages={}", stages),
             "parallel.optimizer_shard=1"});
    }
  return all;
}

void check_known_plans(int job) {
  std::mt19937 random(1044 + static_cast<unsigned>(job));
  const LlamaShape shape = shape_on_any_ranks(random, job);
  const std::string text = llama(shape);
  const MachineFile machine(hosts_of(random, shape.ranks));
  std::vector<std::vector<std::string>> plans = known_plans();
  std::shuffle(plans.begin(), plans.end(), random);
  plans.resize(20);
  std::vector<std::pair<Outcome, std::string>> others;
  for (std::vector<std::string>& settings : plans) {
    const std::string name = join(settings, " ");
    settings.push_back(machine.setting());
    if (const std::optional<Outcome> other = outcome_of(text, settings)) others.emplace_back(*other, name);
  }
  CAPTURE(text);
  REQUIRE(!others.empty());
  const auto by_memory = [](const auto& a, const auto& b) { return a.first.memory < b.first.memory; };
  const auto [least, most] = std::minmax_element(others.begin(), others.end(), by_memory);
  const int64_t limit = least->first.memory + (most->first.memory - least->first.memory) * pick(random, 1, 110) / 100;
  const std::string max_memory = fmt::format("parallel.max_memory={}", limit);
  CAPTURE(max_memory);
  const std::optional<Outcome> found = found_for(text, {machine.setting(), max_memory});
  REQUIRE(found);
  CHECK(found->memory <= limit);
  INFO(fmt::format("found {:.6g} s, {} bytes: {}", found->seconds, found->memory, found->plan));
  for (const auto& [other, name] : others) {
    if (other.memory > limit) continue;
    INFO(fmt::format("{:.6g} s, {} bytes: {}", other.seconds, other.memory, name));
    CHECK(found->seconds <= kMostSlower * other.seconds);
  }
}

}  // namespace

TEST_CASE("llama: on any number of ranks auto_parallel is within 2 % of the best of 20 plans that a user would write") {
  const int first = from_environment("TRAINCTL_KNOWN_FIRST", 0), jobs = from_environment("TRAINCTL_KNOWN_JOBS", 1);
  for (int job = first; job < first + jobs; ++job) {
    CAPTURE(job);
    check_known_plans(job);
  }
}
