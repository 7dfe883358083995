// Tests of jobs that cannot be planned: the error, its position, and the values that would be legal.
#include <doctest/doctest.h>

#include "engine/spec/parse.h"
#include "tests/plan/planned.h"

using namespace trainctl;

namespace {

// The strategy of layer1 is on line 12, from column 14.
std::string job(const std::string& strategy, int ranks = 8) {
  return dataset(32, "[784]") + R"(network:
  - {name: layer1, type: dense, units: 512}
  - {name: soft, type: softmax}
  - {name: layer2, type: dense, units: 1}
loss: mae
launch: {ranks: )" +
         std::to_string(ranks) + R"(}
parallel:
  mode: semi_auto_parallel
  strategies:
    # the next line is what the tests are about
    )" + strategy +
         "\n";
}

std::vector<std::string> errors(const std::string& strategy, int ranks = 8) {
  return plan_errors(job(strategy, ranks));
}

std::string only(const std::vector<std::string>& lines) {
  return lines.size() == 1 ? lines[0]
                           : std::to_string(lines.size()) + " errors" + (lines.empty() ? "" : ": " + lines[0]);
}

}  // namespace

TEST_CASE("a cut that does not divide its dim is shown with the legal ones") {
  CHECK(only(errors("layer1: [[1, 1], [3, 1]]")) ==
        "12:23: parallel.strategies.layer1: dim 0 of weight [512, 784] is cut 3 ways, but 512 is not divisible by 3 | "
        "legal cuts of this dim: 1, 2, 4, 8");
}

TEST_CASE("a cut must divide the ranks of a stage") {
  CHECK(only(errors("layer1: [[1, 1], [4, 1]]", 6)) ==
        "12:23: parallel.strategies.layer1: dim 0 of weight [512, 784] is cut 4 ways, but the job has 6 ranks, which 4 "
        "does not divide | legal cuts of this dim: 1, 2");
}

TEST_CASE("an index that two inputs share is cut the same way in both") {
  CHECK(only(errors("layer1: [[1, 4], [2, 2]]")) ==
        "12:26: parallel.strategies.layer1: dim 1 of weight [512, 784] is cut 2 ways, but dim 1 of data [32, 784], "
        "which runs over the same index, is cut 4 ways | write 4 here, or 2 there");
}

TEST_CASE("the error for a dim that may not be cut gives the reason") {
  const std::string error = only(plan_errors(dataset(32, "[6, 4]", "[8, 3]") + R"(network:
  - {name: turned, type: reshape, shape: [8, 3]}
loss: mae
launch: {ranks: 4}
parallel: {mode: semi_auto_parallel, strategies: {turned: [[1, 2, 1]]}}
)"));
  CAPTURE(error);
  CHECK(error.find("parallel.strategies.turned: dim 1 of data [32, 6, 4] is cut 2 ways, but it cannot be cut: "
                   "reshape keeps this index on one rank") != std::string::npos);
  CHECK(error.ends_with(" | legal cuts of this dim: 1"));
}

TEST_CASE("the product of a layer's cuts divides the ranks") {
  CHECK(only(errors("layer1: [[8, 1], [4, 1]]")) ==
        "12:13: parallel.strategies.layer1: layer1 is cut 8 x 4 = 32 ways in total, but the job has 8 ranks | the "
        "product of the cuts must divide the number of ranks per stage");
}

TEST_CASE("a strategy has no more inputs than its layer, and as many cuts as dims") {
  CHECK(only(errors("layer1: [[1, 1], [1, 1], [1], [1]]")) ==
        "12:13: parallel.strategies.layer1: 4 entries, but layer1 has 3 inputs: data [32, 784], weight [512, 784], "
        "bias [512] | give one list of cuts per input, in this order; trailing lists may be omitted");
  CHECK(only(errors("layer1: [[1, 1, 1]]")) ==
        "12:14: parallel.strategies.layer1: 3 cuts for data [32, 784], which has 2 dims | give one number per dim; "
        "[1, 1] cuts nothing");
}

TEST_CASE("the error for a pattern names the layer that does not fit, and all errors are reported at once") {
  const std::vector<std::string> lines = errors("layer*: [[1, 1], [8, 1]]\n    soft: [[64, 1]]");
  REQUIRE(lines.size() == 2);
  CHECK(lines[1].find("layer2: dim 0 of weight [1, 512] is cut 8 ways") != std::string::npos);
}

TEST_CASE("the number of ranks must be divisible by the number of stages, and stand_alone needs exactly one rank") {
  // The parser checks this too, but the planner does not rely on the parser.
  JobSpec spec = parse_job(job("layer1: [[1, 1]]"), "job.yaml");
  const Graph graph = graph_of(spec);
  spec.launch.ranks = 3;
  spec.parallel.stages = 2;
  CHECK_THROWS_WITH_AS(make_plan(graph, spec, CostModel()),
                       doctest::Contains("3 ranks cannot be divided evenly into "
                                         "2"),
                       SpecError);
  spec.parallel.mode = ParallelMode::stand_alone;
  CHECK_THROWS_WITH_AS(make_plan(graph, spec, CostModel()), doctest::Contains("runs on 1 rank"), SpecError);
}

TEST_CASE("stages do not run backwards, exist, and are not empty") {
  const auto with = [](const std::string& stage_config) {
    return dataset(32, "[784]") + R"(network:
  - {name: layer1, type: dense, units: 512}
  - {name: relu1, type: relu}
  - {name: layer2, type: dense, units: 1}
loss: mae
launch: {ranks: 4}
parallel:
  mode: semi_auto_parallel
  stages: 2
  micro_batches: 2
  stage_config:
)" + stage_config;
  };
  CHECK(only(plan_errors(with("    layer1: 1\n    layer2: 0\n"))) ==
        "14:13: parallel.stage_config.layer2: layer2 is assigned to stage 0, but it reads relu1, which is in stage 1 "
        "| a layer can read only from its own and earlier stages: use stage 1 or later");
  CHECK(only(plan_errors(with("    layer1: 0\n    relu1: 0\n"))).find("stage 1 of 2 has no layer") !=
        std::string::npos);
  CHECK(only(plan_errors(with("    layer2: 1\n    loss: 0\n"))) ==
        "14:11: parallel.stage_config.loss: loss is assigned to stage 0, but it reads layer2, which is in stage 1 | "
        "a layer can read only from its own and earlier stages: use stage 1 or later");
}

TEST_CASE("data_parallel needs a batch that divides among all ranks") {
  const std::string error = only(plan_errors(job("layer1: [[1, 1]]", 3), {"parallel.mode=data_parallel"}));
  CHECK(error.find(
            "dataset.batch: a micro-batch has 32 rows (batch 32 / 1 micro-batches), which cannot be divided evenly "
            "over 3 ranks | data_parallel needs a multiple of 3: 30 or 33") != std::string::npos);
}

TEST_CASE("in hybrid_parallel a strategy cuts only parameters") {
  const std::string error = only(plan_errors(job("layer1: [[2, 1], [1, 1]]", 8), {"parallel.mode=hybrid_parallel"}));
  CHECK(error.find("in hybrid_parallel a strategy cuts only parameters") != std::string::npos);
}

TEST_CASE("the error for a dim of groups, heads or parts says which cuts leave them whole") {
  const auto error_of = [](const std::string& network, const std::string& cuts) {
    return only(plan_errors(
        dataset(32, "[8, 24]", "[8, 24]") + "network: [" + network +
        "]\nloss: mse\nlaunch: {ranks: 8}\nparallel: {mode: semi_auto_parallel, strategies: {x: " + cuts + "}}\n"));
  };
  const auto says = [](const std::string& error, const std::string& words, const std::string& legal) {
    CAPTURE(error);
    CHECK(error.find(words) != std::string::npos);
    CHECK(error.ends_with(" | legal cuts of this dim: " + legal));
  };
  const std::string joined = "{name: j, type: concat, inputs: [x.1, x.0]}";
  says(error_of("{name: x, type: split, sizes: [6, 18]}, " + joined, "[[1, 1, 4]]"),
       "dim 2 of data [32, 8, 24] is cut 4 ways, but all parts of [6, 18] are cut in the same way, and their "
       "greatest common divisor is 6, which is not divisible by 4",
       "1, 2");
  says(error_of("{name: x, type: split, sizes: [7, 17]}, " + joined, "[[1, 1, 2]]"),
       "but it cannot be cut: split has parts of [7, 17] along this dim, which no number of ranks divides; use "
       "equal parts, or parts that are multiples of the number of ranks",
       "1");
  says(error_of("{name: x, type: group_norm, groups: 2}", "[[1, 4, 1]]"),
       "but only whole groups can be cut, and their number is 2, which is not divisible by 4", "1, 2");
  says(error_of(
           "{name: h, type: dense, units: 72}, {name: x, type: attention, heads: 2}, {name: o, type: dense, units: 24}",
           "[[1, 1, 4]]"),
       "but only whole heads of keys and values can be cut, and their number is 2, which is not divisible by 4",
       "1, 2");
}
