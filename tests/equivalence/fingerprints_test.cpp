// Tests of train.fingerprints: those of all ranks add up to the same under every plan, and name the changed tensor.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/files/fingerprint.h"
#include "engine/train/trainer/tensor_fingerprints.h"
#include "tests/equivalence/harness.h"

using namespace trainctl;

namespace {

/// Sums over all ranks, by step.
std::map<int64_t, Fingerprints> fingerprints_under(const std::string& job, std::vector<std::string> overrides) {
  overrides.emplace_back("train={steps: 2, fingerprints: 1}");
  std::mutex mutex;
  std::map<int64_t, Fingerprints> sums;
  RunOn on;
  on.at_step = [&](const Program& program, int64_t step, Executor& executor) {
    const Fingerprints own = own_fingerprints(program, executor);
    const std::lock_guard lock(mutex);
    for (const auto& [name, print] : own) sums[step][name].add(print);
  };
  run_job(job, overrides, on);
  return sums;
}

}  // namespace

TEST_CASE("the fingerprints of initial weights are the same bits under every plan") {
  const std::map<int64_t, Fingerprints> alone = fingerprints_under("mlp", {});
  for (const std::vector<std::string>& plan : std::vector<std::vector<std::string>>{
           {"launch.ranks=2", "parallel.mode=data_parallel"},
           {"launch.ranks=3", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 3, min_kb: 0}"},
           {"launch.ranks=4", "parallel.mode=semi_auto_parallel",
            "parallel.strategies={layer1: [[2, 1], [2, 1]], layer2: [[2, 2], [1, 2]]}"}}) {
    const std::map<int64_t, Fingerprints> cut = fingerprints_under("mlp", plan);
    for (const auto& [name, print] : alone.at(0)) {
      if (!name.starts_with("weight/")) continue;
      CAPTURE(name);
      CHECK(same_bits(print, cut.at(0).at(name)));
      CHECK(print.norm() == doctest::Approx(cut.at(0).at(name).norm()));
    }
    for (const auto& [name, print] : alone.at(2)) {
      CAPTURE(name);
      CHECK(relative_distance(print, cut.at(2).at(name)) < 1e-4);
    }
  }
}

TEST_CASE("parts of a tensor have the fingerprint of the whole in any order, and one changed bit another digest") {
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) - 8.5F;
  Fingerprint whole, parts;
  whole.add(0, values);
  const std::span<const float> all(values);
  parts.add(400, all.subspan(400));
  parts.add(0, all.first(400));
  CHECK(same_bits(whole, parts));
  CHECK(relative_distance(whole, parts) == 0);
  std::vector<float> changed = values;
  std::swap(changed[3], changed[4]);
  Fingerprint other;
  other.add(0, changed);
  CHECK_FALSE(same_bits(whole, other));
  for (float& value : changed) value *= 1.01F;
  Fingerprint scaled;
  scaled.add(0, changed);
  CHECK(relative_distance(whole, scaled) > 0.002);
  CHECK(relative_distance(whole, scaled) < 0.05);
}

TEST_CASE("fingerprints survive the way between ranks and files") {
  std::vector<float> values = {1, -2, 3};
  Fingerprints prints;
  prints["weight/a"].add(7, values);
  prints["gradient/a"].add(0, std::vector<float>{INFINITY});
  CHECK(fingerprints_of_bytes(to_bytes(prints)) == prints);
}
