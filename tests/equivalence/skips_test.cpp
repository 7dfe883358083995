// Skip connections over several stages: every legal schedule compiles to programs that pass the proof, for training and
// for validation, and has the losses of one rank.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "engine/base/text.h"
#include "engine/compile/rank_classes.h"
#include "engine/planning/compile_job.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/harness.h"

using namespace trainctl;

namespace {

/// A chain of one layer per virtual stage, l0, l1, …; each skip adds the output of one layer to a later one.
struct Chain {
  int stages = 1, chunks = 1;
  std::string schedule = "1f1b";
  int micro_batches = 1;
  std::vector<std::pair<int, int>> skips;  ///< virtual stages
  std::string parallel = "";               ///< more of it
  int ranks_of_stage = 1;
  bool ties = false;         ///< the first layer and the last one share their weights
  bool trains_first = true;  ///< false: nothing is trained before stage 1, so no gradient comes back there
  int micro_batch_rows = 2;

  int virtual_stages() const { return stages * chunks; }

  std::string layer(int stage) const {
    const int last = virtual_stages() - 1;
    const std::string name = fmt::format("l{}", stage);
    if (stage == 0 && trains_first) return fmt::format("{{name: {}, type: dense, units: 4}}", name);
    if (stage == last)
      return fmt::format("{{name: {}, type: dense, units: 4{}}}", name, ties && last > 0 ? ", share: l0" : "");
    if (stage % 3 == 1) return fmt::format("{{name: {}, type: dense, units: 4}}", name);
    return fmt::format("{{name: {}, type: {}}}", name, stage % 2 == 0 ? "tanh" : "sigmoid");
  }

  std::string text() const {
    const int batch = micro_batch_rows * micro_batches;
    std::string network, config;
    for (int stage = 0; stage < virtual_stages(); ++stage) {
      network += fmt::format("  - {}\n", layer(stage));
      config += fmt::format("{}l{}: {}", stage == 0 ? "" : ", ", stage, stage);
      std::string at = fmt::format("l{}", stage);
      for (size_t s = 0; s < skips.size(); ++s) {
        if (skips[s].second != stage) continue;
        const std::string sum = fmt::format("sum{}", s);
        network += fmt::format("  - {{name: {}, type: add, inputs: [{}, l{}]}}\n", sum, at, skips[s].first);
        config += fmt::format(", {}: {}", sum, stage);
        at = sum;
      }
    }
    return fmt::format(
        "dataset: {{type: random, shape: [4], batch: {0}, samples: {1}, label_shape: [4], label_dtype: f32}}\n"
        "network:\n{2}loss: mse\noptimizer: {{type: sgd, learning_rate: 0.3}}\ntrain: {{steps: 3}}\n"
        "validation: {{dataset: {{samples: {3}}}, every_steps: 2}}\n"
        "parallel: {{mode: semi_auto_parallel, stages: {4}, chunks: {5}, schedule: {6}, micro_batches: {7}, "
        "stage_config: {{{8}}}{9}}}\nlaunch: {{ranks: {10}, device: cpu}}\n",
        batch, 2 * batch, network, batch + 1, stages, chunks, schedule, micro_batches, config, parallel,
        stages * ranks_of_stage);
  }

  PlannedJob planned(const std::vector<std::string>& overrides = {}) const {
    return plan_job(parse_job(text(), "chain.yaml", overrides));
  }

  RunResult one_rank() const {
    return run_job(planned({"launch.ranks=1", fmt::format("parallel={{micro_batches: {}}}", micro_batches)}));
  }
};

void require_same_numbers(const Chain& chain) {
  CAPTURE(chain.text());
  const RunResult one = chain.one_rank(), run = run_job(chain.planned());
  REQUIRE(run.losses.size() == 3);
  for (size_t step = 0; step < run.losses.size(); ++step)
    CHECK(run.losses[step] == doctest::Approx(one.losses[step]).epsilon(1e-5));
  REQUIRE(run.validations.size() == 2);  // after 2 and 3 steps
  for (size_t v = 0; v < run.validations.size(); ++v) {
    CHECK(run.validations[v].samples == one.validations[v].samples);
    CHECK(run.validations[v].value("loss").value() ==
          doctest::Approx(one.validations[v].value("loss").value()).epsilon(1e-5));
  }
}

/// Compiled and proved, for training, for a validation during training and for an evaluation.
void require_proved(const Chain& chain) {
  CAPTURE(chain.text());
  const PlannedJob job = chain.planned();
  CHECK_NOTHROW(compile_classes(job));
  CHECK_NOTHROW(compile_validation_classes(job));
  CHECK_NOTHROW(compile_validation_classes(job, false));
}

std::vector<std::string> schedules(const Chain& chain) {
  if (chain.chunks > 1) return {"interleaved_1f1b"};
  return {"gpipe", "1f1b", "zero_bubble"};
}

}  // namespace

TEST_CASE("a skip over 3 to 8 stages has the losses of one rank under every schedule, training and validating") {
  for (const int stages : {3, 5, 8}) {
    for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"})
      require_same_numbers({stages, 1, schedule, 3 * stages - 1, {{0, stages - 1}}});
  }
}

TEST_CASE("skips between chunks have the losses of one rank under interleaved_1f1b, training and validating") {
  require_same_numbers({2, 4, "interleaved_1f1b", 4, {{0, 3}, {1, 7}}});
  require_same_numbers({3, 2, "interleaved_1f1b", 6, {{0, 5}, {1, 3}}});
  require_same_numbers({4, 2, "interleaved_1f1b", 8, {{1, 7}}});
  require_same_numbers({4, 3, "interleaved_1f1b", 4, {{0, 9}, {2, 11}, {3, 7}}});
  require_same_numbers({6, 2, "interleaved_1f1b", 6, {{1, 3}, {3, 7}}});
}

TEST_CASE("skips work with recompute, tied weights, cut layers, sharded optimizers and without a way back") {
  require_same_numbers({6, 1, "1f1b", 11, {{0, 5}, {1, 5}}, ", recompute: ['*']"});
  require_same_numbers({5, 1, "1f1b", 7, {{0, 4}}, "", 1, true});
  require_same_numbers({4, 2, "interleaved_1f1b", 4, {{0, 7}}, ", recompute: [l0, l4]", 1, true});
  require_same_numbers({5, 1, "1f1b", 9, {{0, 4}, {0, 3}}, "", 1, false, false});
  require_same_numbers({4, 1, "zero_bubble", 6, {{0, 3}}, ", optimizer_shard: {level: 2, min_kb: 0}", 2});
  require_same_numbers(
      {4, 1, "1f1b", 7, {{0, 3}}, ", strategies: {l1: [[1, 1], [2, 1]]}, optimizer_shard: {level: 1, min_kb: 0}", 2});
}

TEST_CASE("every legal schedule passes the proof with any skips, training and validating") {
  std::mt19937 random(41);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  for (int trial = 0; trial < 120; ++trial) {
    Chain chain;
    chain.stages = draw(2, 8);
    chain.chunks = draw(0, 2) == 0 ? draw(2, 4) : 1;
    chain.micro_batches = chain.chunks > 1 ? chain.stages * draw(1, 3) : draw(1, 2 * chain.stages + 3);
    for (int skips = draw(1, 4); skips > 0; --skips) {
      const int from = draw(0, chain.virtual_stages() - 2);
      chain.skips.emplace_back(from, draw(from + 1, chain.virtual_stages() - 1));
    }
    chain.ties = draw(0, 3) == 0;
    chain.trains_first = chain.ties || draw(0, 3) > 0;
    chain.parallel = std::vector<std::string>{"", "", ", recompute: ['*']", ", recompute: [l0, l1]"}[draw(0, 3)];
    for (const std::string& schedule : schedules(chain)) {
      chain.schedule = schedule;
      require_proved(chain);
    }
  }
}

TEST_CASE("a skip holds no more messages in its channel than micro-batches fit between its ends") {
  const Chain chain{8, 1, "gpipe", 40, {{0, 7}}};
  const RankClasses classes = compile_classes(chain.planned());
  const Program& first = classes.program_of(0);
  std::map<int, int> numbers;  // of the sends to the last stage, by instruction
  int received = 0, most = 0;  // for certain, and the most in flight
  for (int i = 0; i < static_cast<int>(first.instructions.size()); ++i) {
    const Instruction& code = first.instructions[static_cast<size_t>(i)];
    for (const int awaited : code.waits)
      if (const auto sent = numbers.find(awaited); sent != numbers.end()) received = std::max(received, sent->second);
    if (code.opcode != Opcode::send || code.peer != 7) continue;
    numbers.emplace(i, static_cast<int>(numbers.size()) + 1);
    most = std::max(most, static_cast<int>(numbers.size()) - received);
  }
  CHECK(numbers.size() == 40);
  CHECK(received == 40);
  CHECK(most == 8);
}

TEST_CASE("auto_parallel plans a network whose branches end in distant stages") {
  const std::string text = R"(
dataset: {type: random, shape: [2, 4], batch: 12, samples: 12, label_shape: [2], label_dtype: f32, shuffle: false}
network:
- {name: fc1, type: dense, units: 2}
- {name: reduce_sum1, type: reduce_sum, dims: [2]}
- {name: split1, type: split, inputs: [fc1], dim: 1, sizes: [1, 1]}
- {name: concat1, type: concat, inputs: [fc1, split1.0], dim: 1}
- {name: softmax1, type: softmax, inputs: split1.1}
- {name: softmax2, type: softmax, inputs: [concat1]}
- {name: leaky_relu1, type: leaky_relu, inputs: [split1.1], negative_slope: 0.2}
- {name: reshape1, type: reshape, inputs: [softmax2], shape: [6, 1, 1]}
- {name: flatten1, type: flatten, inputs: softmax1}
- {name: flatten2, type: flatten, inputs: leaky_relu1}
- {name: flatten3, type: flatten, inputs: [reshape1]}
- {name: concat3, type: concat, inputs: [reduce_sum1, flatten1, flatten2, flatten3], dim: 1}
- {name: out, type: dense, units: 2}
loss: mse
optimizer: {type: sgd, learning_rate: 0.01}
train: {steps: 3}
parallel: {mode: auto_parallel, search: {effort: high}, stages: 8}
launch: {ranks: 8, device: cpu}
)";
  const PlannedJob job = plan_job(parse_job(text, "branches.yaml"));
  CHECK(job.plan.num_stages == 8);
  CHECK_NOTHROW(compile_classes(job));
}
