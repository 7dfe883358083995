// Where a run resumes, and which checkpoints it may resume from (engine/train/checkpoint/restore.h).
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/data/order.h"

using namespace trainctl;

namespace {

PlannedJob job_with(const std::vector<std::string>& overrides = {}) {
  return plan_job(parse_job(R"(name: small
seed: 1
dataset: {type: random, shape: [3], label_dtype: f32, batch: 4, samples: 24}
network: [{name: out, type: dense, units: 1}]
loss: mse
train: {epochs: 4}
launch: {ranks: 1, device: cpu}
)",
                            "small.yaml", overrides));
}

/// Manifest of the job above after `step` steps; an epoch has six.
Manifest after(int64_t step) {
  const PlannedJob job = job_with();
  Manifest manifest;
  manifest.step = step;
  manifest.epoch = step / 6 + 1;
  manifest.epoch_step = step % 6;
  manifest.samples = step * 4;
  manifest.seed = job.spec.seed;
  manifest.order = order_text(job.spec.dataset, job.samples, job.spec.seed);
  return manifest;
}

std::string refusal(const std::vector<std::string>& overrides, int64_t step) {
  try {
    position_after(job_with(overrides), after(step), "step_00000008");
  } catch (const EnvError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("inside an epoch a resume needs the order of samples that the epoch began with") {
  CHECK(refusal({}, 8).empty());
  CHECK(refusal({"dataset.batch=2"}, 8).empty());
  for (const char* other : {"seed=2", "dataset.samples=48", "dataset.shuffle=false", "dataset.repeat=2"}) {
    CAPTURE(other);
    CHECK(refusal({other}, 8).find("some samples of the epoch would be trained on twice, and others not at all") !=
          std::string::npos);
  }
  CHECK(refusal({"dataset.samples=48"}, 8).find("24 samples made from seed 1") != std::string::npos);
}

TEST_CASE("at the end of an epoch a run may resume with another order of samples") {
  for (const char* other : {"seed=2", "dataset.samples=48", "dataset.shuffle=false"}) {
    CAPTURE(other);
    CHECK(refusal({other}, 12).empty());
  }
  CHECK(position_after(job_with({"dataset.samples=48"}), after(12), "step_00000012").step == 24);
}
