// Warnings about jobs that run but are probably not meant.
#include "engine/spec/warnings.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "engine/spec/parse.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

/// "3:5 network[0]: message" of each warning, one per line.
std::string warned(const std::string& text) {
  std::string all;
  for (const Diagnostic& d : warnings(parse_job(text, "job.yaml")))
    all += std::to_string(d.pos.line) + ":" + std::to_string(d.pos.column) + " " + d.path + ": " + d.message + "\n";
  return all;
}

const std::string kWarningsData = "dataset: {type: random, shape: [4], label_dtype: f32, batch: 4}\n";
const std::string kPlainData = "dataset: {type: constant, shape: [4], batch: 4}\n";
const std::string kNetwork = "network:\n  - {name: a, type: dense, units: 4}\n  - {name: b, type: dense, units: 1}\n";

}  // namespace

TEST_CASE("an optimizer without a loss is a warning at the optimizer") {
  CHECK(warned(kPlainData + kNetwork + "optimizer: {type: sgd}\n") ==
        "5:12 optimizer: there is no loss, so the job runs only the forward pass and the optimizer has no effect\n");
  CHECK(warned(kWarningsData + kNetwork + "optimizer: {type: sgd}\nloss: mse\n").empty());
}

TEST_CASE("labels without a loss are a warning, unless a layer reads them") {
  CHECK(warned(kWarningsData + kNetwork) ==
        "1:50 dataset.label_dtype: there is no loss, so the job runs only the forward pass and the labels are "
        "unused\n");
  CHECK(warned(kPlainData + kNetwork).empty());
  CHECK(warned(kWarningsData + "network:\n  - {name: a, type: dense, units: 4, inputs: [label]}\n").empty());
}

TEST_CASE("a layer that nothing reads is a warning at the layer") {
  const std::string aside =
      "network:\n  - {name: a, type: dense, units: 4}\n"
      "  - {name: aside, type: dense, units: 4}\n"
      "  - {name: b, type: dense, units: 1, inputs: [a]}\n";
  const std::string found = "4:5 network[1]: the output of layer 'aside' is unused\n";
  CHECK(warned(kWarningsData + aside + "loss: mse\n") == found);
  CHECK(warned(kPlainData + aside) == found);
  CHECK(warned(kWarningsData + aside + "loss: mse\nprint: [aside]\n").empty());
}

TEST_CASE("the last layer is read by the loss, or is the result of a job without one") {
  CHECK(warned(kWarningsData + kNetwork + "loss: mse\n").empty());
  CHECK(warned(kPlainData + kNetwork).empty());
  CHECK(warned(kWarningsData + "network:\n  - {name: a, type: dense, units: 1}\n  - {name: b, type: dense, units: 4}\n"
                               "loss: {type: mse, input: a}\n") ==
        "4:5 network[1]: the output of layer 'b' is unused\n");
}

TEST_CASE("a layer of a module that is used several times is one warning") {
  CHECK(
      warned(kWarningsData +
             "modules:\n  block:\n    - {name: x, type: relu}\n    - {name: y, type: relu, inputs: [input]}\n"
             "network:\n  - {module: block, name: h, repeat: 3}\n  - {name: b, type: dense, units: 1}\nloss: mse\n") ==
      "4:7 modules.block[0]: the output of layer 'h.0.x' is unused\n");
}

TEST_CASE("a job with a command, and the jobs of the tests that train, have no warnings") {
  CHECK(warned("command: [echo]\n").empty());
  for (const std::string& name : job_names()) {
    CAPTURE(name);
    CHECK(warnings(job_spec(name)).empty());
  }
}

TEST_CASE("a validation that names the files of the training is a warning") {
  const auto job = [](const std::string& validation, const std::string& training = "t.csv") {
    return "dataset: {type: csv, path: " + training +
           ", fields: {x: a, label: y}, label_dtype: f32}\n"
           "network:\n  - {name: b, type: dense, units: 1, inputs: [x]}\nloss: mse\nvalidation: " +
           validation + "\n";
  };
  CHECK(warned(job("{dataset: {path: [v.csv, t.csv]}}")) ==
        "5:23 validation.dataset: the validation evaluates training samples\n");
  CHECK(warned(job("{dataset: {path: v.csv}}")).empty());
  CHECK(!warned(job("{dataset: {path: t-1.csv}}", "'t-*.csv'")).empty());
  CHECK(!warned(job("{dataset: {path: '?.csv'}}")).empty());
  CHECK(warned(job("{dataset: {path: v-1.csv}}", "'t-*.csv'")).empty());
  CHECK(warned(job("{dataset: {path: t/v.csv}}", "'*.csv'")).empty());

  const Scratch scratch;
  const std::string training = scratch.path() + "/t.csv";
  std::ofstream(training) << "a,y\n1,0\n";
  std::filesystem::create_symlink("t.csv", scratch.path() + "/symbolic.csv");
  std::filesystem::create_hard_link(training, scratch.path() + "/hard.csv");
  for (const char* link : {"/symbolic.csv", "/hard.csv"})
    CHECK(!warned(job("{dataset: {path: " + scratch.path() + link + "}}", training)).empty());
}
