// Tests of histograms: the counts of all ranks of a plan add up to those of one rank.
#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "engine/spec/parse.h"
#include "engine/train/trainer/tensor_histograms.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

using Histograms = std::map<std::string, Histogram>;

/// Sums of the histograms of all ranks after the last of two steps.
Histograms histograms_of(const std::string& job, std::vector<std::string> overrides) {
  overrides.emplace_back("train={steps: 2, histograms: 1}");
  Histograms all;
  std::mutex mutex;
  RunOn on;
  on.at_step = [&](const Program& program, int64_t step, Executor& executor) {
    if (step != 2) return;
    const Histograms own = own_histograms(program, executor);
    const std::lock_guard lock(mutex);
    for (const auto& [name, histogram] : own) all[name].add(histogram);
  };
  run_job(job, overrides, on);
  return all;
}

std::vector<std::string> joined(std::vector<std::string> overrides, const std::vector<std::string>& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

}  // namespace

TEST_CASE("under every plan the ranks' histograms of weights and gradients add up to those of one rank") {
  std::map<std::string, Histograms> references;
  for (const PlanCase& plan : plan_cases()) {
    CAPTURE(plan.name);
    const Histograms found = histograms_of(plan.job, joined(plan.same, plan.plan));
    size_t gradients = 0;
    for (const auto& [name, histogram] : found) {
      if (!name.starts_with("gradients/")) continue;
      ++gradients;
      CAPTURE(name);
      CHECK(histogram.count() == found.at("weights/" + name.substr(name.find('/') + 1)).count());
    }
    CHECK(gradients > 0);
    if (plan.reference != nullptr) continue;  // its network has tensors of another size
    std::string key = plan.job;
    for (const std::string& field : plan.same) key += " " + field;
    const auto [reference, is_new] = references.try_emplace(key);
    if (is_new) reference->second = histograms_of(plan.job, plan.same);
    REQUIRE(found.size() == reference->second.size());
    for (const auto& [name, expected] : reference->second) {
      CAPTURE(name);
      const Histogram& histogram = found.at(name);
      CHECK(histogram.count() == expected.count());
      CHECK(histogram.not_finite() == 0);
      const double root = std::sqrt(expected.sum_of_squares()), slack = 1e-3 * root + 1e-7;
      CHECK(std::abs(std::sqrt(histogram.sum_of_squares()) - root) <= slack);
      CHECK(std::abs(histogram.max() - expected.max()) <= slack);
      CHECK(std::abs(histogram.min() - expected.min()) <= slack);
    }
  }
}

TEST_CASE("a gradient's histogram is that of the update: weights move by it") {
  // Plain SGD, where an update inside the gradient's kernel would leave no gradient to count.
  const std::vector<std::string> plain = {"optimizer={type: sgd, learning_rate: 0.5}",
                                          "train={steps: 1, histograms: 1}"};
  std::map<std::string, double> weights;
  Histograms counted;
  RunOn on;
  on.at_step = [&](const Program& program, int64_t step, Executor& executor) {
    Histograms own = own_histograms(program, executor);
    for (const auto& [name, histogram] : own)
      if (step == 0) weights[name] = histogram.sum();
    if (step == 1) counted = std::move(own);
  };
  run_job("small", plain, on);
  size_t moved = 0;
  for (const auto& [name, gradient] : counted) {
    if (!name.starts_with("gradients/")) continue;
    CAPTURE(name);
    const std::string weight = "weights/" + name.substr(name.find('/') + 1);
    CHECK(counted.at(weight).sum() - weights.at(weight) == doctest::Approx(-0.5 * gradient.sum()).epsilon(1e-3));
    moved += gradient.sum_of_squares() > 0 ? 1 : 0;
  }
  CHECK(moved > 0);
}
