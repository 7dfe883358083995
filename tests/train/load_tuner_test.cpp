// What the tuner decides, on pipelines that are a formula.
#include "engine/train/data/load_tuner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace trainctl;

namespace {

/// A step computes for `compute` seconds, a batch takes one worker `read` seconds, and up to `cores` workers run at once.
struct Pipeline {
  double compute = 0.01, read = 0.04;
  int cores = 8;
  double step(int workers) const { return std::max(compute, read / std::min(workers, cores)); }
  double waited(int workers) const { return step(workers) - compute; }
};

int run(LoadTuner& tuner, const Pipeline& p, int steps) {
  int changes = 0;
  for (int i = 0; i < steps; ++i) {
    const int workers = tuner.setting().workers;
    changes += tuner.after_step(p.step(workers), p.waited(workers), std::min(p.read, workers * p.step(workers))) ? 1 : 0;
  }
  return changes;
}

}  // namespace

TEST_CASE("a slow pipeline gets workers until the trainer does not wait, within 200 steps, and then nothing changes") {
  LoadTuner tuner({1, 1}, {16, 8});
  const Pipeline slow;
  run(tuner, slow, 200);
  CHECK(slow.waited(tuner.setting().workers) == 0);
  CHECK(run(tuner, slow, 2000) == 0);
}

TEST_CASE("workers that do not shorten the step are taken back, once") {
  LoadTuner tuner({1, 1}, {16, 8});
  const Pipeline two_cores{.compute = 0.001, .read = 0.1, .cores = 2};
  run(tuner, two_cores, 400);
  CHECK(tuner.setting().workers == 2);
  CHECK(run(tuner, two_cores, 4000) == 0);
}

TEST_CASE("when the load falls workers are given back, and never again so many that the trainer waits") {
  LoadTuner tuner({1, 1}, {16, 8});
  run(tuner, {.compute = 0.01, .read = 0.1, .cores = 16}, 200);
  CHECK(tuner.setting().workers == 16);
  const Pipeline light{.compute = 0.01, .read = 0.015, .cores = 16};
  run(tuner, light, 400);
  CHECK(tuner.setting().workers == 2);
  CHECK(run(tuner, light, 2000) == 0);
  CHECK(light.waited(tuner.setting().workers) == 0);
}

TEST_CASE("where the workers idle while the trainer waits, more batches are read ahead") {
  LoadTuner tuner({4, 1}, {4, 8});
  std::vector<LoadTuner::Change> changes;
  for (int i = 0; i < 64; ++i) {
    const double waited = 0.004 / tuner.setting().ahead;
    if (const auto change = tuner.after_step(0.01 + waited, waited, 0.01)) changes.push_back(*change);
  }
  REQUIRE_FALSE(changes.empty());
  CHECK(changes.front().to == LoadSetting{4, 2});
  CHECK(changes.front().reason == "the trainer waits 29 % of a step, and the workers are busy 18 % of the time");
  CHECK(tuner.setting().ahead == 8);
}

TEST_CASE("a trainer that does not wait is left alone") {
  LoadTuner tuner({1, 1}, {16, 8});
  for (int i = 0; i < 500; ++i) CHECK_FALSE(tuner.after_step(0.01, 20e-6, 0.002));
}
