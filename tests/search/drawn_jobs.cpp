// Draws random jobs and plans for tests and benchmarks of the search.
#include "tests/search/drawn_jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/estimate/simulate.h"
#include "engine/planning/compile_job.h"
#include "engine/search/networks.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"

namespace trainctl {
namespace {

std::string drawn_layers(std::mt19937& random) {
  const int width = one_of<int>(random, {6, 8, 12, 16, 24, 30});
  std::string text = fmt::format(
      "dataset: {{type: random, shape: [{0}], label_shape: [{0}], label_dtype: f32, batch: {1}, samples: "
      "48}}\nnetwork:\n",
      width, one_of<int>(random, {6, 8, 12, 24}));
  const int layers = pick(random, 2, 6);
  for (int l = 0; l < layers; ++l) {
    const int kind = pick(random, 0, 3);
    if (kind == 0) {
      text += fmt::format("  - {{name: l{}, type: relu}}\n", l);
    } else if (kind == 1) {
      text += fmt::format("  - {{name: l{}, type: layer_norm}}\n", l);
    } else if (kind == 2 && l > 1) {
      text += fmt::format("  - {{name: l{}, type: add, inputs: [l{}, l{}]}}\n", l, l - 1, l - 2);
    } else {
      text += fmt::format("  - {{name: l{}, type: dense, units: {}}}\n", l, width);
    }
  }
  return text + "loss: mse\noptimizer: {type: adam, learning_rate: 0.001}\n";
}

/// Cuts of some layers of drawn_network or gpt; whether they are legal the planner says.
std::string drawn_strategies(std::mt19937& random, bool large) {
  const std::vector<int> ways = {1, 1, 2, 2, 3, 4, 8};
  std::vector<std::string> entries;
  const std::vector<std::string> layers =
      large ? std::vector<std::string>{"h.*.qkv", "h.*.proj", "h.*.up", "h.*.down", "head"}
            : std::vector<std::string>{"l0", "l1", "l2"};
  for (const std::string& layer : layers) {
    if (pick(random, 0, 1) == 0) continue;
    const int m = one_of(random, ways), n = one_of(random, ways), k = one_of(random, ways);
    const int kept = pick(random, 0, 2);  // one kind of cut, or all
    const int rows = kept != 1 ? m : 1, inner = kept == 1 ? k : 1, columns = kept == 0 ? 1 : n;
    entries.push_back(large ? fmt::format("{}: [[{}, 1, {}], [{}, {}]]", layer, rows, inner, columns, inner)
                            : fmt::format("{}: [[{}, {}], [{}, {}]]", layer, rows, inner, columns, inner));
  }
  return "parallel.strategies={" + join(entries) + "}";
}

}  // namespace

int pick(std::mt19937& random, int from, int to) {
  return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
}

std::string drawn_network(std::mt19937& random) {
  for (;;) {
    std::string text = drawn_layers(random);
    if (text.find("dense") != std::string::npos) return text;
  }
}

std::string gpt(int layers, int units) {
  return fmt::format(R"(
dataset: {{type: random, shape: [16], dtype: i32, classes: 64, label_shape: [16], label_dtype: i32, batch: 16, samples: 64}}
modules:
  block:
    - {{name: ln1, type: layer_norm}}
    - {{name: qkv, type: dense, units: {1}}}
    - {{name: attn, type: attention, heads: 4, causal: true}}
    - {{name: proj, type: dense, units: {0}}}
    - {{name: sum1, type: add, inputs: [proj, input]}}
    - {{name: ln2, type: layer_norm}}
    - {{name: up, type: dense, units: {2}}}
    - {{name: act, type: gelu}}
    - {{name: down, type: dense, units: {0}}}
    - {{name: sum2, type: add, inputs: [down, sum1]}}
network:
  - {{name: wte, type: embedding, vocab: 64, units: {0}}}
  - {{module: block, name: h, repeat: {3}}}
  - {{name: ln, type: layer_norm}}
  - {{name: head, type: dense, units: 64, bias: false}}
loss: softmax_cross_entropy
optimizer: {{type: adamw, learning_rate: 0.001}}
)",
                     units, 3 * units, 4 * units, layers);
}

DrawnPlan drawn_plan(std::mt19937& random, bool large) {
  DrawnPlan plan{large ? gpt(pick(random, 1, 12), 64 * pick(random, 1, 32)) : drawn_network(random), {}};
  const auto set = [&](const std::string& field, const std::string& value) {
    plan.settings.push_back(field + "=" + value);
  };
  const int stages = one_of<int>(random, {1, 1, 2, 2, 3, 4});
  const Schedule schedule = one_of<Schedule>(
      random, {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble, Schedule::interleaved_1f1b});
  const std::string machine = one_of<std::string>(random, {"cpu", "a100x8", "h100x8", "h200x8"});
  set("launch.ranks", std::to_string(stages * one_of<int>(random, {1, 2, 3, 4, 6, 8, 16})));
  set("launch.machine", machine);
  if (machine != "cpu") set("launch.device", "cuda");
  if (machine != "cpu" && pick(random, 0, 1) == 1) set("precision", one_of<std::string>(random, {"bf16", "tf32"}));
  set("parallel.mode", "semi_auto_parallel");
  set("parallel.stages", std::to_string(stages));
  set("parallel.micro_batches", std::to_string(one_of<int>(random, {1, 2, 3, 4, 6, 8})));
  if (stages > 1) set("parallel.schedule", std::string(to_string(schedule)));
  if (stages > 1 && schedule == Schedule::interleaved_1f1b) set("parallel.chunks", "2");
  set("parallel.optimizer_shard", fmt::format("{{level: {}, min_kb: 0}}", pick(random, 0, 3)));
  if (pick(random, 0, 1) == 1)
    set("parallel.recompute", large ? one_of<std::string>(random, {"[h.*.ln1, h.*.act]", "[h.*.attn]"}) : "[l1]");
  if (pick(random, 0, 2) > 0) plan.settings.push_back(drawn_strategies(random, large));
  return plan;
}

PlannedJob planned(const std::string& text, const std::vector<std::string>& settings) {
  return plan_job(parse_job(text, "job.yaml", settings));
}

double simulated_seconds(const PlannedJob& job) {
  return simulate(compile_classes(job), job.cost.machine()).step.value;
}

int64_t most_memory(const PlannedJob& job) { return most_memory(compile_classes(job)); }

double bound_of(const PlannedJob& job) {
  const ParallelSpec& parallel = job.spec.parallel;
  Networks networks(job.spec, job.data.shapes, job.cost);
  return least_seconds(networks.of(parallel.micro_batches)->least, job.spec.launch.ranks, parallel.stages,
                       parallel.micro_batches, parallel.schedule);
}

Regret drawn_regret(std::mt19937& random, bool short_of_memory, const std::string& effort) {
  Regret drawn{.text = drawn_network(random)};
  const int ranks = pick(random, 2, 8);
  drawn.settings = {fmt::format("launch.ranks={}", ranks), "parallel.mode=auto_parallel",
                    "parallel.optimizer_shard.min_kb=0",
                    "launch.machine=" + one_of<std::string>(random, {"cpu", "h100x8"})};
  if (pick(random, 0, 1) == 1) drawn.settings.push_back("parallel.stages=1");
  if (pick(random, 0, 1) == 1) drawn.settings.push_back("parallel.micro_batches=" + std::to_string(pick(random, 1, 2)));
  if (pick(random, 0, 1) == 1)
    drawn.settings.push_back(fmt::format("parallel.optimizer_shard.level={}", pick(random, 0, 3)));
  std::vector<std::string> settings = drawn.settings;
  settings.emplace_back("parallel.search.algorithm=exhaustive");
  FoundPlan all;
  try {
    all = *planned(drawn.text, settings).search;
  } catch (const SpecError&) {
    return drawn;
  }
  drawn.plans = all.tried.size();
  if (short_of_memory) {
    int64_t least = all.best().trial.memory;
    for (const TriedPlan& plan : all.tried)
      if (plan.trial.fault.empty()) least = std::min(least, plan.trial.memory);
    drawn.limit = least + (all.best().trial.memory - least) * pick(random, 0, 100) / 100;
  }
  drawn.best = 1e300;
  for (const TriedPlan& plan : all.tried)
    if (plan.trial.fits(drawn.limit)) drawn.best = std::min(drawn.best, plan.trial.seconds);
  settings = drawn.settings;
  settings.push_back("parallel.search.effort=" + effort);
  if (drawn.limit > 0) settings.push_back(fmt::format("parallel.max_memory={}", drawn.limit));
  try {
    const PlannedJob job = planned(drawn.text, settings);
    drawn.found = simulated_seconds(job);
    drawn.memory = most_memory(job);
    drawn.bound = job.search->bound;
  } catch (const SpecError&) {  // none fits, it says
  }
  return drawn;
}

}  // namespace trainctl
