// Tests how a job names metrics.
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/spec/parse.h"

using namespace trainctl;

namespace {

const std::string kJob = R"(
dataset: {type: random, shape: [8], label_dtype: i32, classes: 6}
network: [{name: fc, type: dense, units: 6}]
loss: softmax_cross_entropy
)";

std::string error_of(const std::string& text) {
  try {
    parse_job(text, "job.yaml");
  } catch (const SpecError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("metrics: top5 is short for top_k with k: 5") {
  CHECK(parse_job(kJob + "metrics: [accuracy, top5]\n", "job.yaml").metric_names() ==
        std::vector<std::string>{"accuracy", "top_5"});
  CHECK(parse_job(kJob + "metrics: top_3\n", "job.yaml").metric_names() == std::vector<std::string>{"top_3"});
  CHECK(error_of(kJob + "metrics: topmost\n").find("unknown metric 'topmost'") != std::string::npos);
}

TEST_CASE("metrics: a metric that only the validation names is added to the job once") {
  const JobSpec job =
      parse_job(kJob + "metrics: accuracy\nvalidation: {metrics: [loss, top5, accuracy]}\n", "job.yaml");
  CHECK(job.metric_names() == std::vector<std::string>{"accuracy", "top_5"});
  CHECK(job.reported_metrics() == std::vector<std::string>{"loss", "accuracy", "top_5"});
  const JobSpec again = parse_job(to_yaml(job), "again.yaml");
  CHECK(again.metric_names() == job.metric_names());
  CHECK(again.reported_metrics() == job.reported_metrics());
}

TEST_CASE("metrics: a validation of a loss over numbers has no accuracy, and says so") {
  const std::string text = R"(
dataset: {type: random, shape: [8], label_dtype: f32, label_shape: [6]}
network: [{name: fc, type: dense, units: 6}]
loss: mse
validation: {metrics: [loss, accuracy]}
)";
  CHECK(error_of(text).find("accuracy needs class labels") != std::string::npos);
}
