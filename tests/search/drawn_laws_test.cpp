// Laws of the search on drawn Llama-shaped jobs: dense and with experts, short and long sequences, with and without a
// window, on 4 or 8 GPUs of one or more hosts.
// TRAINCTL_LAW_JOBS: number of jobs (`./bootstrap soak` draws 30). TRAINCTL_LAW_FIRST: number of the first one.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/text.h"
#include "tests/search/drawn_jobs.h"
#include "tests/search/llama_jobs.h"

using namespace trainctl;

namespace {

LlamaShape drawn_shape_of_any_kind(std::mt19937& random) {
  const int heads = one_of<int>(random, {8, 12, 16, 32});
  LlamaShape shape{.blocks = one_of<int>(random, {6, 9, 12, 16}), .heads = heads};
  shape.units = heads * one_of<int>(random, {64, 128});
  shape.hidden = one_of<int>(random, {3, 4}) * shape.units;
  shape.kv_heads = one_of<int>(random, {heads / 4, heads});
  shape.ranks = one_of<int>(random, {4, 8});
  const bool is_long = pick(random, 0, 1) == 1;
  shape.length = is_long ? one_of<int>(random, {16384, 32768, 65536}) : one_of<int>(random, {2048, 4096, 8192});
  shape.batch = is_long ? one_of<int>(random, {1, 2, 4, 8}) : one_of<int>(random, {4, 8, 16});
  if (pick(random, 0, 3) == 0) shape.window = shape.length / 8;
  if (pick(random, 0, 2) == 0) {
    shape.experts = one_of<int>(random, {4, 8});
    shape.hidden = shape.units;
  }
  return shape;
}

/// Fields that a user may fix, alone or together.
std::vector<std::vector<std::string>> constraints_of(const LlamaShape& shape) {
  std::vector<std::vector<std::string>> all = {
      {"parallel.stages=1"},
      {"parallel.stages=2"},
      {"parallel.micro_batches=1"},
      {"parallel.micro_batches=2"},
      {"parallel.optimizer_shard=1"},
      {"parallel.optimizer_shard=3"},
      {"parallel.stages=1", "parallel.optimizer_shard=2"},
      {"parallel.recompute=[]"},
      {"parallel.recompute=['h.*']"},
      {"parallel.recompute=['h.*.norm*', 'h.*.sum1']"},
      {"parallel.context=2"},
      {fmt::format("parallel.context={}", shape.ranks)},
      {"parallel.context=2", "parallel.tensor=2"},
      {fmt::format("parallel.context={}", shape.ranks), "parallel.context_method=gather"},
      {"parallel.context=2", "parallel.context_method=ring"},
      {"parallel.tensor=2"},
      {fmt::format("parallel.tensor={}", shape.ranks)},
  };
  if (shape.experts > 0) {
    all.push_back({"parallel.expert=2"});
    all.push_back({"parallel.expert=4"});
  }
  return all;
}

/// Plans that need little memory.
std::vector<std::vector<std::string>> savers_of(const LlamaShape& shape) {
  const std::vector<std::string> saver = {"parallel.mode=semi_auto_parallel", "parallel.optimizer_shard=3",
                                          "parallel.recompute=['h.*']"};
  std::vector<std::vector<std::string>> all;
  for (const int context : {1, 2, shape.ranks}) {
    all.push_back(saver);
    all.back().push_back(fmt::format("parallel.context={}", context));
  }
  return all;
}

/// Hosts of half as many GPUs as ranks, or one host, with one property improved.
Machine machine_of(int ranks, bool has_two_hosts, int better) {
  Machine machine = *find_machine("h100x8");
  if (has_two_hosts) machine.devices = machine.links[0].devices = ranks / 2;
  if (better == 0) machine.links[0].bandwidth = 2 * machine.links[0].bandwidth;
  if (better == 1) machine.links[1].bandwidth = 2 * machine.links[1].bandwidth;
  if (better == 2) machine.memory_rate = 2 * machine.memory_rate;
  if (better == 3) machine.products.bf16 = 2 * machine.products.bf16;
  if (better == 4) machine.exponentials_per_second *= 2;
  if (better == 5) machine.links[0].latency = machine.links[1].latency = {};
  return machine;
}

class DrawnLaws {
 public:
  explicit DrawnLaws(unsigned seed) : random_(seed), shape_(drawn_shape_of_any_kind(random_)), text_(llama(shape_)) {}

  void check() {
    const bool has_two_hosts = pick(random_, 0, 2) == 0;
    const MachineFile machine(machine_of(shape_.ranks, has_two_hosts, -1));
    const std::optional<Outcome> free = found({machine.setting(), "parallel.max_memory=1TiB"});
    CAPTURE(text_);
    CAPTURE(has_two_hosts);
    REQUIRE(free);
    const int64_t limit = free->memory * pick(random_, 40, 110) / 100;
    const std::string max_memory = fmt::format("parallel.max_memory={}", limit);
    CAPTURE(max_memory);
    const std::optional<Outcome> base = found({machine.setting(), max_memory});
    if (!base) return check_that_none_fits(machine, limit);
    INFO(fmt::format("found: {:.6g} s, {} bytes: {}", base->seconds, base->memory, base->plan));
    CHECK(base->memory <= limit);
    check_no_worse("more memory", *free, *base);
    const int better = pick(random_, 0, 5);
    const MachineFile improved(machine_of(shape_.ranks, has_two_hosts, better));
    const std::optional<Outcome> faster = found({improved.setting(), max_memory});
    REQUIRE(faster);
    check_no_worse(fmt::format("a better machine ({})", better), *faster, *base);
    for (int round = 0; round < 3; ++round) check_constraint(machine, max_memory, *base);
    for (const std::vector<std::string>& saver : savers_of(shape_)) {
      std::vector<std::string> settings = saver;
      settings.push_back(machine.setting());
      const std::optional<Outcome> other = outcome_of(text_, settings);
      if (other && other->memory <= limit) check_no_worse("freedom instead of " + join(saver, " "), *base, *other);
    }
  }

 private:
  std::optional<Outcome> found(std::vector<std::string> settings) { return found_for(text_, std::move(settings)); }

  static void check_no_worse(const std::string& freedom, const Outcome& with, const Outcome& without) {
    CAPTURE(freedom);
    INFO(fmt::format("with it {:.6g} s: {}; without {:.6g} s: {}", with.seconds, with.plan, without.seconds,
                     without.plan));
    CHECK(with.seconds <= kSlack * without.seconds);
  }

  void check_constraint(const MachineFile& machine, const std::string& max_memory, const Outcome& base) {
    std::vector<std::string> settings = one_of(random_, constraints_of(shape_));
    const std::string constraint = join(settings, " ");
    settings.push_back(machine.setting());
    settings.push_back(max_memory);
    if (const std::optional<Outcome> constrained = found(settings))
      check_no_worse("without " + constraint, base, *constrained);
  }

  void check_that_none_fits(const MachineFile& machine, int64_t limit) {
    for (const std::vector<std::string>& saver : savers_of(shape_)) {
      std::vector<std::string> settings = saver;
      settings.push_back(machine.setting());
      const std::optional<Outcome> other = outcome_of(text_, settings);
      INFO(join(saver, " "));
      if (other) CHECK(other->memory > limit);
    }
  }

  std::mt19937 random_;
  LlamaShape shape_;
  std::string text_;
};

}  // namespace

TEST_CASE("llama: on drawn jobs more memory, a better machine and fewer constraints never cost more than 0.6 %") {
  const int first = from_environment("TRAINCTL_LAW_FIRST", 0), jobs = from_environment("TRAINCTL_LAW_JOBS", 1);
  for (int job = first; job < first + jobs; ++job) {
    CAPTURE(job);
    DrawnLaws(static_cast<unsigned>(job)).check();
  }
}
