// Runs on GPUs follow the CPU's one-rank loss curve under every plan, and have the same bits each time.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/jobs.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/gpu/gpus.h"

using namespace trainctl;

namespace {

constexpr double kTolerance = 1e-4;
constexpr double kBf16Tolerance = 2e-2;  ///< both round to bf16, each after sums in its own order
const char* const kMse = "loss=mse";     // mae has slopes of one size; rounding flips their signs

std::vector<std::string> all_overrides(const PlanCase& plan) {
  std::vector<std::string> overrides = plan.same;
  overrides.insert(overrides.end(), plan.plan.begin(), plan.plan.end());
  return overrides;
}

int ranks_of(const PlanCase& plan) { return parse_job(plan.job, "gpu.yaml", all_overrides(plan)).launch.ranks; }

double largest_difference(const std::vector<float>& losses, const std::vector<float>& expected) {
  REQUIRE(losses.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double difference = std::abs(double(losses[i]) - expected[i]) / std::abs(double(expected[i]));
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

}  // namespace

TEST_CASE("every plan that there are GPUs for follows the CPU's curve, with the same bits twice") {
  if (!have_gpus(1, "plans on GPUs")) return;
  int run = 0, left_out = 0;
  for (const PlanCase& plan : plan_cases()) {
    if (ranks_of(plan) > num_gpus()) {
      ++left_out;
      continue;
    }
    ++run;
    CAPTURE(plan.name);
    const RunResult expected = run_job(plan.reference ? *plan.reference : plan.job, plan.same);
    const RunResult found = run_job(plan.job, all_overrides(plan), {.cuda = true});
    const double worst = largest_difference(found.losses, expected.losses);
    std::printf("%-60s %.2g\n", plan.name, worst);
    CHECK(worst < std::max(kTolerance, plan.tolerance));
    const RunResult again = run_job(plan.job, all_overrides(plan), {.cuda = true});
    CHECK(again.losses == found.losses);
    CHECK(again.weights == found.weights);
  }
  std::printf("%d plans run, %d need more than %d GPUs\n", run, left_out, num_gpus());
}

TEST_CASE("every network runs on one GPU as on the CPU") {
  if (!have_gpus(1, "networks on one GPU")) return;
  const std::pair<const char*, const std::string*> networks[] = {{"mlp", &jobs::kMlp},
                                                                 {"odd", &jobs::kOdd},
                                                                 {"classifier", &jobs::kClassifier},
                                                                 {"batch_norm", &jobs::kBatchNorm},
                                                                 {"language", &jobs::kLanguage},
                                                                 {"attention", &jobs::kAttention}};
  for (const auto& [name, text] : networks) {
    CAPTURE(name);
    const RunResult expected = run_job(*text, {}), found = run_job(*text, {}, {.cuda = true});
    const double worst = largest_difference(found.losses, expected.losses);
    std::printf("%-60s %.2g\n", name, worst);
    CHECK(worst < kTolerance);
  }
}

TEST_CASE("a gradient that is made and reduced in pieces follows the CPU's curve") {
  if (!have_gpus(2, "gradients in pieces")) return;
  for (const bool half : {false, true}) {
    for (const char* more :
         {"parallel.optimizer_shard={min_kb: 0, level: 0}", "parallel.optimizer_shard={min_kb: 0, level: 1}",
          "parallel.optimizer_shard={min_kb: 0, level: 2}", "parallel.micro_batches=2"}) {
      CAPTURE(half);
      CAPTURE(more);
      std::vector<std::string> plan = {"launch.ranks=2", "parallel.mode=data_parallel", more};
      if (half) plan.insert(plan.end(), {"precision=bf16", "gradient_precision=bf16", kMse});
      const RunResult expected = run_job(jobs::kMlp, plan);
      PlannedJob job = plan_job(parse_job(jobs::kMlp, "gpu.yaml", plan));
      job.plan.gradient_piece_bytes = 512;
      const RunResult found = run_job(std::move(job), {.cuda = true});
      const std::vector<Bucket>& buckets = found.programs[0].buckets;
      const bool apart = buckets[0].sums_offset >= 0;  // a sum kept apart is rounded as a whole
      CHECK(std::any_of(buckets.begin(), buckets.end(), [](const Bucket& b) { return b.pieces > 1; }) == !apart);
      CHECK(largest_difference(found.losses, expected.losses) < (half ? kBf16Tolerance : kTolerance));
    }
  }
}

TEST_CASE("bf16 jobs with gradients in bf16 follow the CPU's curve, with the same bits twice") {
  if (!have_gpus(1, "gradients in bf16")) return;
  const std::pair<const char*, const std::string*> networks[] = {
      {"mlp", &jobs::kMlp}, {"odd", &jobs::kOdd}, {"batch_norm", &jobs::kBatchNorm}, {"language", &jobs::kLanguage}};
  for (const int ranks : {1, 2, 4}) {
    if (!have_gpus(ranks, "gradients in bf16 on " + std::to_string(ranks) + " ranks")) return;
    for (const auto& [name, text] : networks) {
      for (const char* level : {"0", "1", "2", "3"}) {
        for (const char* micro : {"1", "2"}) {
          if (ranks == 1 && level[0] != '0') continue;
          std::vector<std::string> plan = {"precision=bf16",
                                           "gradient_precision=bf16",
                                           "train.epochs=3",
                                           "launch.ranks=" + std::to_string(ranks),
                                           std::string("parallel.micro_batches=") + micro,
                                           std::string("parallel.optimizer_shard={min_kb: 0, level: ") + level + "}"};
          if (text == &jobs::kMlp) plan.emplace_back(kMse);
          if (ranks > 1) plan.emplace_back("parallel.mode=data_parallel");
          CAPTURE(join(plan));
          const RunResult expected = run_job(*text, plan), found = run_job(*text, plan, {.cuda = true});
          const double worst = largest_difference(found.losses, expected.losses);
          std::printf("%-12s %d ranks, level %s, %s micro-batches %.2g\n", name, ranks, level, micro, worst);
          CHECK(worst < kBf16Tolerance);
          const RunResult again = run_job(*text, plan, {.cuda = true});
          CHECK(again.losses == found.losses);
          CHECK(again.weights == found.weights);
        }
      }
    }
  }
}

TEST_CASE("a captured step and one that runs stream by stream have the same bits") {
  for (int ranks : {1, 2}) {
    if (!have_gpus(ranks, "graphs of " + std::to_string(ranks) + " ranks")) return;
    for (const std::string* text : {&jobs::kClassifier, &jobs::kLanguage}) {
      std::vector<std::string> overrides = {"launch.ranks=" + std::to_string(ranks), "parallel.micro_batches=2"};
      if (ranks > 1) overrides.push_back("parallel.mode=data_parallel");
      const RunResult graph = run_job(*text, overrides, {.cuda = true, .graph = true});
      const RunResult eager = run_job(*text, overrides, {.cuda = true, .graph = false});
      CHECK(graph.losses == eager.losses);
      CHECK(graph.weights == eager.weights);
    }
  }
}

TEST_CASE("train.sink_steps changes no loss") {
  if (!have_gpus(1, "sink_steps")) return;
  const RunResult one = run_job(jobs::kMlp, {}, {.cuda = true});
  // Graphs of 1, 2, 5 and 25 steps, and the remainder.
  for (const char* sink : {"train.sink_steps=3", "train.sink_steps=4", "train.sink_steps=11", "train.sink_steps=50"}) {
    CHECK(run_job(jobs::kMlp, {sink}, {.cuda = true}).losses == one.losses);
  }
}
