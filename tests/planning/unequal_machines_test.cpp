// launch.machine as a list: pipeline stages are cut by the speeds of their machines. Shares of work are counted, not
// timed.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/machine/machine.h"
#include "engine/plan/stages/stages.h"
#include "engine/planning/machine_file.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

/// A file of the machine "cpu" with this share of its speed.
std::string slower_cpu(const ScratchFolder& folder, double share) {
  Machine machine = *find_machine("cpu");
  for (FlopsPerSecond* rate : {&machine.products.fp32, &machine.products.tf32, &machine.products.bf16})
    rate->value *= share;
  machine.kernels = {};
  const std::string file = folder.path() + fmt::format("/cpu_{}.json", share);
  write_machine(machine, file);
  return file;
}

/// 24 equal layers.
JobSpec chain(const std::vector<std::string>& machines, const std::string& parallel) {
  std::string network;
  for (int l = 0; l < 24; ++l) network += fmt::format("  - {{name: l{}, type: dense, units: 32, bias: false}}\n", l);
  std::string list;
  for (const std::string& machine : machines) list += (list.empty() ? "" : ", ") + machine;
  return parse_job(
      fmt::format("dataset: {{type: random, shape: [32], label_shape: [32], label_dtype: f32, batch: 16}}\n"
                  "network:\n{}loss: mse\nparallel: {}\nlaunch: {{ranks: {}, device: cpu, machine: [{}]}}\n",
                  network, parallel, machines.size(), list),
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

TEST_CASE("ranks of different speeds cannot share a stage evenly") {
  const ScratchFolder folder;
  const std::string slow = slower_cpu(folder, 0.5);
  CHECK_THROWS_WITH_AS(plan_job(chain({"cpu", slow}, "{mode: data_parallel}")),
                       doctest::Contains("ranks 0 and 1 share stage 0 evenly"), SpecError);
  CHECK_NOTHROW(plan_job(chain({"cpu", "cpu", slow, slow}, "{mode: semi_auto_parallel, stages: 2}")));
  CHECK_THROWS_WITH_AS(plan_job(chain({"cpu", slow, "cpu", slow}, "{mode: semi_auto_parallel, stages: 2}")),
                       doctest::Contains("ranks 0 and 1 share stage 0 evenly"), SpecError);
}
