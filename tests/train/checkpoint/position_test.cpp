// Tests where a run resumes, and which checkpoints it may resume from (engine/train/checkpoint/restore.h).
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/resume_position.h"
#include "engine/train/data/order.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/train/scratch_folder.h"

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
  manifest.order = order_text(job.spec.dataset, job.data.samples, job.spec.seed);
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
    CHECK(refusal({other}, 8).find("the epoch would train on some samples twice and on others not at all") !=
          std::string::npos);
  }
  CHECK(refusal({"dataset.samples=48"}, 8).find("24 samples made from seed 1") != std::string::npos);
}

TEST_CASE("a sample that was trained on does not move into the validation's share, not even at an epoch's end") {
  const ScratchFolder folder;
  std::string rows = "a,y\n";
  for (int i = 0; i < 40; ++i) rows += "1,2\n";
  folder.write("t.csv", ByteVector(rows.begin(), rows.end()));
  const auto job = [&](const char* split, const char* seed) {
    return plan_job(
        parse_job("name: s\ndataset: {type: csv, path: " + folder.path() +
                      "/t.csv, batch: 2, fields: {data: a, label: y}, label_dtype: f32}\n"
                      "network: [{name: out, type: dense, units: 1}]\nloss: mse\n"
                      "validation: {every_epochs: 1}\ntrain: {epochs: 9}\nlaunch: {ranks: 1, device: cpu}\n",
                  "s.yaml", {std::string("dataset.split=") + split, std::string("seed=") + seed}));
  };
  Manifest manifest;
  manifest.step = 12;
  manifest.epoch = 2;
  manifest.samples = 24;
  manifest.seed = 1;
  manifest.train_share = 0.6;
  const auto refused = [&](const char* split, const char* seed) {
    const PlannedJob planned = job(split, seed);
    std::string text;
    for (const auto& require : {+[](const PlannedJob&j, const Manifest&m) { position_after(j, m, "c"); },
                                +[](const PlannedJob&j, const Manifest&m) { require_untrained_samples(j, m, "c"); }}) {
      try {
        require(planned, manifest);
      } catch (const EnvError& error) {
        text += std::string(error.what()) + "\n";
      }
    }
    return text;
  };
  CHECK(refused("{train: 0.6, validation: 0.4}", "1").empty());
  CHECK(refused("{train: 0.8, validation: 0.2}", "1").empty());
  const std::string mixed = "dataset.split would move training samples to the validation; set ";
  const std::string smaller = "c was trained on a fraction of 0.6 of the samples, but the job trains on 0.5: " + mixed +
                              "dataset.split.train to 0.6 or more\n";
  CHECK(refused("{train: 0.5, validation: 0.5}", "1") == smaller + smaller);
  const std::string seeded = "c was trained with seed 1, but the job has seed 2: " + mixed + "seed=1\n";
  CHECK(refused("{train: 0.6, validation: 0.4}", "2") == seeded + seeded);
  manifest.step = 0;  // imported weights
  CHECK(refused("{train: 0.5, validation: 0.5}", "2").empty());
}

TEST_CASE("at the end of an epoch a run may resume with another order of samples") {
  for (const char* other : {"seed=2", "dataset.samples=48", "dataset.shuffle=false"}) {
    CAPTURE(other);
    CHECK(refusal({other}, 12).empty());
  }
  CHECK(position_after(job_with({"dataset.samples=48"}), after(12), "step_00000012").step == 24);
}
