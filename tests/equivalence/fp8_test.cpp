// precision: fp8 follows bf16, and plans of several ranks follow one rank.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "tests/equivalence/compare.h"
#include "tests/equivalence/harness.h"

using namespace trainctl;

namespace {

/// A GPT of two blocks whose sizes are multiples of 16.
RunResult run_gpt(const std::string& precision, std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"vars.d=64", "vars.heads=4", "vars.length=32", "vars.vocab=64",
                                       "dataset.batch=16", "dataset.samples=64", "precision=" + precision});
  if (precision == "fp8") overrides.emplace_back("fp8.min_weight=0");
  return run_job("gpt", overrides);
}

double largest_difference(const RunResult& run, const RunResult& reference) {
  double largest = 0;
  REQUIRE(run.losses.size() == reference.losses.size());
  for (size_t i = 0; i < run.losses.size(); ++i) {
    const double part = std::abs(double{run.losses[i]} / double{reference.losses[i]} - 1);
    largest = std::isnan(part) ? INFINITY : std::max(largest, part);
  }
  return largest;
}

}  // namespace

TEST_CASE("fp8: the loss of a GPT on text follows bf16 within 1 %, and falls") {
  const auto run = [](const std::string& precision) {
    std::vector<std::string> overrides = {"vars.d=64",
                                          "vars.layers=2",
                                          "vars.tokens=64",
                                          "dataset.batch=8",
                                          "train.steps=60",
                                          "metrics=[]",
                                          "precision=" + precision,
                                          "optimizer.learning_rate={base: 0.002, warmup_steps: 10}"};
    if (precision == "fp8") overrides.emplace_back("fp8.min_weight=0");
    return run_job(plan_job(load_job(TRAINCTL_SOURCE_DIR "/configs/gpt_text.yaml", overrides)));
  };
  const RunResult fp8 = run("fp8"), bf16 = run("bf16");
  const double off = largest_difference(fp8, bf16);
  MESSAGE("largest relative difference ", off, ", loss ", fp8.losses.front(), " to ", fp8.losses.back());
  CHECK(off < 0.01);
  CHECK(off > 0);
  CHECK(fp8.losses.back() < 0.75f * fp8.losses.front());
}

TEST_CASE("fp8: every plan follows one rank, with the same bits twice") {
  for (const std::string micro_batches : {"1", "2"}) {
    const std::string same = "parallel.micro_batches=" + micro_batches;
    const RunResult reference = run_gpt("fp8", {same, "train.steps=30"});
    for (const std::vector<std::string>& plan :
         {std::vector<std::string>{"launch.ranks=2", "parallel.mode=data_parallel"},
          {"launch.ranks=4", "parallel.mode=data_parallel", "parallel.optimizer_shard={min_kb: 0, level: 1}"},
          {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard={min_kb: 0, level: 3}"},
          {"launch.ranks=2", "parallel.mode=semi_auto_parallel",
           "parallel.strategies={'h.*.qkv': [[1, 1, 1], [2, 1]], "
           "'h.*.proj': [[1, 1, 2], [1, 2]], 'h.*.up': [[1, 1, 1], [2, 1]], 'h.*.down': [[1, 1, 2], [1, 2]]}"},
          {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2",
           "parallel.stage_config={'h.1.*': 1, ln_f: 1, head: 1}"}}) {
      std::vector<std::string> overrides = plan;
      overrides.insert(overrides.end(), {same, "train.steps=30"});
      const RunResult run = run_gpt("fp8", overrides), again = run_gpt("fp8", overrides);
      const double off = largest_difference(run, reference);
      MESSAGE(join(plan), ": largest relative difference ", off);
      CHECK(off < 5e-3);
      CHECK(same_bits(run.losses, again.losses));
      check_communications(run);
    }
  }
}
