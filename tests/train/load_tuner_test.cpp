// Tests the decisions of the tuner on simulated pipelines, whose speed is given by a formula.
#include "engine/train/data/load_tuner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tests/train/simulated_pipeline.h"

using namespace trainctl;

namespace {

/// A pipeline in which a step computes for `compute` seconds, one worker needs `read` seconds for a batch, and up to
/// `cores` workers run at the same time.
struct TunedPipeline {
  double compute = 0.01, read = 0.04;
  int cores = 8;
  double step(int workers) const { return std::max(compute, read / std::min(workers, cores)); }
  double waited(int workers) const { return step(workers) - compute; }
};

int run(LoadTuner& tuner, const TunedPipeline& p, int steps) {
  int changes = 0;
  for (int i = 0; i < steps; ++i) {
    const int workers = tuner.setting().workers;
    changes +=
        tuner.after_step(p.step(workers), p.waited(workers), std::min(p.read, workers * p.step(workers))) ? 1 : 0;
  }
  return changes;
}

/// A pipeline whose rows take these seconds on average, each 40 % more or less.
SimulatedPipeline uneven(const StageSeconds& mean) {
  SimulatedPipeline pipeline;
  pipeline.read = [mean](int64_t batch, int row) {
    const uint64_t mixed = (static_cast<uint64_t>(batch) * 8 + static_cast<uint64_t>(row) + 1) * 0x9e3779b97f4a7c15u;
    const double factor = 0.6 + 0.8 * static_cast<double>(mixed >> 40) / double(1 << 24);
    StageSeconds seconds = mean;
    for (double& stage : seconds.of) stage *= factor;
    return seconds;
  };
  return pipeline;
}

/// The four cases whose bottleneck is known; a step computes for one unit of time.
std::vector<SimulatedPipeline> known_pipelines() {
  SimulatedPipeline decode = uneven({{0.02, 1.0, 0.1, 0.02}}), source = uneven({{0.9, 0.02, 0.02, 0.02}}),
                    transform = uneven({{0.01, 0.1, 0.6, 0.01}}), balanced = uneven({{0.12, 0.12, 0.12, 0.12}});
  source.uses_cores = false;
  SimulatedPipeline few = decode, rare = balanced;
  few.cores = 6;
  // With 1 batch ahead more than 8 workers do not help; with 2 batches ahead they do.
  SimulatedPipeline deep = uneven({{1.05, 0, 0, 0}});
  deep.uses_cores = false;
  // One row of 24 takes as long as two steps. More batches ahead can hide that, more workers cannot.
  rare.read = [](int64_t batch, int row) { return StageSeconds{{row == 0 && batch % 3 == 0 ? 2.0 : 0.02, 0, 0, 0}}; };
  return {decode, source, transform, balanced, few, rare, deep};
}

void tune(SimulatedRun& run, LoadTuner& tuner, int steps) {
  for (int i = 0; i < steps; ++i) {
    const SimulatedRun::Step step = run.step();
    if (const auto change = tuner.after_step(step.seconds, step.waited, step.busy, step.stages)) run.set(change->to);
  }
}

}  // namespace

TEST_CASE("from 1 worker and 1 batch ahead each pipeline reaches 95 % of the best of a grid within 200 steps") {
  for (const SimulatedPipeline& pipeline : known_pipelines()) {
    double best = 1e30;
    for (const int workers : {1, 2, 3, 4, 6, 8, 12, 16})
      for (const int ahead : {1, 2, 4, 8, 16}) {
        SimulatedRun by_hand(pipeline, {workers, ahead});
        by_hand.mean_step(50);
        best = std::min(best, by_hand.mean_step(200));
      }
    SimulatedRun run(pipeline, {1, 1});
    LoadTuner tuner({1, 1}, {16, 16});
    tune(run, tuner, 200);
    const LoadSetting settled = tuner.setting();
    CAPTURE(to_string(settled));
    CHECK(run.mean_step(200) <= best / 0.95);
  }
}

TEST_CASE("a trainer that mostly waits has 16 workers after 32 steps") {
  SimulatedRun run(uneven({{0.02, 1.9, 0.1, 0.02}}), {1, 1});
  LoadTuner tuner({1, 1}, {16, 16});
  tune(run, tuner, 32);
  CHECK(tuner.setting().workers == 16);
}

TEST_CASE("one sample of every 4,000 that takes 100 times as long adds less than 5 % to an epoch") {
  const auto steps_of = [](bool is_slow) {
    SimulatedPipeline pipeline = uneven({{0.05, 0.05, 0.05, 0}});
    pipeline.read = [is_slow, usual = pipeline.read](int64_t batch, int row) {
      StageSeconds seconds = usual(batch, row);
      if (is_slow && batch % 500 == 250 && row == 3) seconds[ReadStage::decode] += 99 * seconds.sum();
      return seconds;
    };
    SimulatedRun run(pipeline, {1, 1});
    LoadTuner tuner({1, 1}, {16, 16});
    tune(run, tuner, 500);
    double seconds = 0;
    for (int i = 0; i < 500; ++i) {
      const SimulatedRun::Step step = run.step();
      seconds += step.seconds;
      if (const auto change = tuner.after_step(step.seconds, step.waited, step.busy, step.stages)) run.set(change->to);
    }
    return seconds;
  };
  CHECK(steps_of(true) < 1.05 * steps_of(false));
}

TEST_CASE("when the work of a pipeline falls to a tenth, most workers are removed, and the speed stays the same") {
  SimulatedPipeline heavy = uneven({{0.1, 1.0, 0.1, 0.1}});
  SimulatedRun run(heavy, {1, 1});
  LoadTuner tuner({1, 1}, {16, 16});
  tune(run, tuner, 200);
  const int before = tuner.setting().workers;
  CHECK(before >= 10);
  run.set(uneven({{0.01, 0.1, 0.01, 0.01}}));
  tune(run, tuner, 200);
  CHECK(tuner.setting().workers <= before / 4);
  CHECK(run.mean_step(200) <= 1 / 0.95);
}

TEST_CASE("a slow pipeline gets workers until the trainer does not wait, within 200 steps, and then nothing changes") {
  LoadTuner tuner({1, 1}, {16, 8});
  const TunedPipeline slow;
  run(tuner, slow, 200);
  CHECK(slow.waited(tuner.setting().workers) == 0);
  CHECK(run(tuner, slow, 2000) == 0);
}

TEST_CASE("workers that do not shorten the step are taken back, once") {
  LoadTuner tuner({1, 1}, {16, 8});
  const TunedPipeline two_cores{.compute = 0.001, .read = 0.1, .cores = 2};
  run(tuner, two_cores, 400);
  CHECK(tuner.setting().workers == 2);
  CHECK(run(tuner, two_cores, 4000) == 0);
}

TEST_CASE("when the load falls, workers are removed until one fewer would make the trainer wait again") {
  LoadTuner tuner({1, 1}, {16, 8});
  run(tuner, {.compute = 0.01, .read = 0.1, .cores = 16}, 200);
  CHECK(tuner.setting().workers == 16);
  const TunedPipeline light{.compute = 0.01, .read = 0.015, .cores = 16};
  run(tuner, light, 400);
  CHECK(tuner.setting().workers == 2);
  CHECK(run(tuner, light, 2000) == 0);
  CHECK(light.waited(tuner.setting().workers) == 0);
}

TEST_CASE("if the workers are idle while the trainer waits, more batches are read ahead") {
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

TEST_CASE("for a trainer that does not wait nothing changes") {
  LoadTuner tuner({1, 1}, {16, 8});
  for (int i = 0; i < 500; ++i) CHECK_FALSE(tuner.after_step(0.01, 20e-6, 0.002));
}
