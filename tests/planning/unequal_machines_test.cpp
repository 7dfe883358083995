// launch.machine as a list: stages and data-parallel ranks get work by the speeds of their machines. Shares of work are
// counted, not timed.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/machine/machine.h"
#include "engine/plan/stages/stages.h"
#include "engine/planning/machine_file.h"
#include "engine/planning/unequal_ranks.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/jobs/jobs.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

/// Writes a file with the machine "cpu" at this share of its speed.
std::string slower_cpu(const ScratchFolder& folder, double share) {
  Machine machine = *find_machine("cpu");
  for (FlopsPerSecond* rate : {&machine.products.fp32, &machine.products.tf32, &machine.products.bf16})
    rate->value *= share;
  machine.kernels = {};
  const std::string file = folder.path() + fmt::format("/cpu_{}.json", share);
  write_machine(machine, file);
  return file;
}

/// A job with 24 equal layers.
JobSpec chain(const std::vector<std::string>& machines, const std::string& parallel, int batch = 16) {
  std::string network;
  for (int l = 0; l < 24; ++l) network += fmt::format("  - {{name: l{}, type: dense, units: 32, bias: false}}\n", l);
  std::string list;
  for (const std::string& machine : machines) list += (list.empty() ? "" : ", ") + machine;
  return parse_job(
      fmt::format("dataset: {{type: random, shape: [32], label_shape: [32], label_dtype: f32, batch: {}}}\n"
                  "network:\n{}loss: mse\nparallel: {}\nlaunch: {{ranks: {}, device: cpu, machine: [{}]}}\n",
                  batch, network, parallel, machines.size(), list),
      "chain.yaml");
}

std::vector<int> layers_of_stages(const PlannedJob& job) {
  std::vector<int> count(static_cast<size_t>(job.plan.num_stages));
  for (size_t l = 0; l < job.graph.layers.size(); ++l)
    if (job.graph.layers[l].name.starts_with("l")) ++count[static_cast<size_t>(job.plan.layers[l].virtual_stage)];
  return count;
}

}  // namespace

TEST_CASE("a partition by speeds gives each part work in proportion to its speed") {
  const std::vector<double> costs(12, 1);
  const auto sizes = [&](const std::vector<double>& speeds) {
    std::vector<int> count(speeds.size());
    for (const int part : balanced_partition(costs, static_cast<int>(speeds.size()), speeds))
      ++count[static_cast<size_t>(part)];
    return count;
  };
  CHECK(sizes({1, 1}) == std::vector{6, 6});
  CHECK(sizes({1, 0.5}) == std::vector{8, 4});
  CHECK(sizes({0.5, 1}) == std::vector{4, 8});
  CHECK(sizes({1, 0.5, 0.5}) == std::vector{6, 3, 3});
  CHECK(balanced_partition(costs, 3) == balanced_partition(costs, 3, {2, 2, 2}));
}

TEST_CASE("a machine at half the speed costs a pipeline at most its share plus a tenth") {
  const ScratchFolder folder;
  for (const double share : {0.5, 0.25}) {
    CAPTURE(share);
    const std::string slow = slower_cpu(folder, share);
    const PlannedJob job = plan_job(chain({"cpu", slow}, "{mode: semi_auto_parallel, stages: 2, micro_batches: 4}"));
    const std::vector<int> layers = layers_of_stages(job);
    REQUIRE(layers.size() == 2);
    const double ideal = 24 / (1 + share), slowest = std::max(layers[0] / 1.0, layers[1] / share);
    CHECK(slowest <= 1.1 * ideal + 1 / share);  // a layer is not divided
    CHECK(layers[0] > layers[1] / share - 2 / share);
    CHECK(std::any_of(job.plan.notes.begin(), job.plan.notes.end(),
                      [](const std::string& note) { return note.find("launch.machine: stages") == 0; }));
    const PlannedJob equal = plan_job(chain({"cpu", "cpu"}, "{mode: semi_auto_parallel, stages: 2, micro_batches: 4}"));
    const std::vector<int> halves = layers_of_stages(equal);
    CHECK(std::abs(halves[0] - halves[1]) <= 2);  // the first layer has no gradient of its input
  }
}

TEST_CASE("data-parallel ranks run micro-batches in proportion to the speeds of their machines") {
  const ScratchFolder folder;
  for (const double share : {0.5, 0.25, 0.8}) {
    CAPTURE(share);
    const std::string slow = slower_cpu(folder, share);
    const PlannedJob job = plan_job(chain({"cpu", slow}, "{mode: data_parallel}", 96));
    const Ints& of_ranks = job.spec.parallel.rank_micro_batches;
    REQUIRE(of_ranks.size() == 2);
    CHECK(job.plan.micro_batches == of_ranks[0] + of_ranks[1]);
    const auto all = static_cast<double>(job.plan.micro_batches), ideal = all / (1 + share);
    CHECK(std::max(static_cast<double>(of_ranks[0]), static_cast<double>(of_ranks[1]) / share) <= 1.1 * ideal);
    CHECK(std::any_of(job.plan.notes.begin(), job.plan.notes.end(),
                      [](const std::string& note) { return note.find("launch.machine: the ranks") == 0; }));
    // The division of the work is also in the resolved job, which the workers read.
    const PlannedJob again = plan_job(parse_job(to_yaml(job.spec), "resolved.yaml"));
    CHECK(again.spec.parallel.rank_micro_batches == of_ranks);
  }
  CHECK(plan_job(chain({"cpu", "cpu"}, "{mode: data_parallel}")).spec.parallel.rank_micro_batches.empty());
}

TEST_CASE("a division of micro-batches is the best for the speeds of its ranks") {
  const std::vector<std::vector<double>> all = {{1, 1}, {1, 0.5}, {1, 0.5, 0.25}, {1, 0.9, 0.1}, {0.3, 0.7, 1, 1}};
  for (const std::vector<double>& speeds : all)
    for (const int64_t batch : {12, 24, 60, 64}) {
      CAPTURE(speeds.size());
      CAPTURE(batch);
      const auto divided = divide_micro_batches(batch, batch, speeds);
      REQUIRE(divided);
      const int64_t count = std::accumulate(divided->of_ranks.begin(), divided->of_ranks.end(), int64_t{0});
      CHECK(batch % count == 0);
      const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
      size_t slowest = 0;
      const auto time = [&](size_t rank, int64_t more) {
        return static_cast<double>(divided->of_ranks[rank] + more) / speeds[rank];
      };
      for (size_t rank = 0; rank < speeds.size(); ++rank)
        if (time(rank, 0) > time(slowest, 0)) slowest = rank;
      for (size_t rank = 0; rank < speeds.size(); ++rank) {
        CHECK(divided->of_ranks[rank] >= 1);
        // No micro-batch of the slowest rank would be finished earlier on another rank.
        if (divided->of_ranks[slowest] > 1) CHECK(time(rank, 1) >= time(slowest, 0) - 1e-12);
      }
      CHECK(divided->share == doctest::Approx(time(slowest, 0) * sum / static_cast<double>(count)));
    }
  CHECK_FALSE(divide_micro_batches(1, 1, {1, 0.5}));
  CHECK_FALSE(divide_micro_batches(7, 3, {1, 0.5, 0.5, 1, 1, 1, 1, 1}));
  const auto small = divide_micro_batches(64, 2, {1, 0.5});
  REQUIRE(small);
  CHECK(small->of_ranks[0] + small->of_ranks[1] >= 32);  // rows that fit
}

TEST_CASE("ranks with micro-batches of their own exchange gradients once per step at every level of sharding") {
  const ScratchFolder folder;
  const std::string slow = slower_cpu(folder, 0.5);
  for (const int level : {0, 1, 2, 3}) {
    CAPTURE(level);
    const PlannedJob job =
        plan_job(chain({"cpu", slow}, "{mode: data_parallel, optimizer_shard: " + std::to_string(level) + "}"));
    CHECK_FALSE(job.spec.parallel.rank_micro_batches.empty());
    CHECK(job.spec.parallel.optimizer_shard.level == std::min(level, 1));
    const auto notes = std::count_if(job.plan.notes.begin(), job.plan.notes.end(), [](const std::string& note) {
      return note.find("shards only the optimizer state, as level 1") != std::string::npos;
    });
    CHECK(notes == (level > 1 ? 1 : 0));
  }
}

TEST_CASE("jobs whose ranks cannot have micro-batches of their own are errors that name the way out") {
  const ScratchFolder folder;
  const std::string slow = slower_cpu(folder, 0.5);
  CHECK_THROWS_WITH_AS(plan_job(chain({"cpu", slow}, "{mode: semi_auto_parallel}")),
                       doctest::Contains("ranks 0 and 1 share stage 0 evenly"), SpecError);
  CHECK_NOTHROW(plan_job(chain({"cpu", "cpu", slow, slow}, "{mode: semi_auto_parallel, stages: 2}")));
  CHECK_THROWS_WITH_AS(plan_job(chain({"cpu", slow, "cpu", slow}, "{mode: semi_auto_parallel, stages: 2}")),
                       doctest::Contains("ranks 0 and 1 share stage 0 evenly"), SpecError);
  CHECK_THROWS_WITH_AS(plan_job(job_spec("batch_norm", {"launch.ranks=2", "parallel.mode=data_parallel",
                                                        "parallel.rank_micro_batches=[2, 1]"})),
                       doctest::Contains("changes with every micro-batch"), SpecError);
}
