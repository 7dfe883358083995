// Tests that classes and tokens are compared with the sizes of the network before a run.
#include "engine/train/data/sample_check.h"

#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/jobs/jobs.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

/// "line:column path: message" of the errors, one per line; "" if the job passes.
std::string errors_of(const JobSpec& spec) {
  std::string all;
  try {
    require_sound_samples(plan_job(spec));
  } catch (const SpecError& error) {
    for (const Diagnostic& d : error.diagnostics())
      all += std::to_string(d.pos.line) + ":" + std::to_string(d.pos.column) + " " + d.path + ": " + d.message + "\n";
  }
  return all;
}

std::string errors(const std::string& text) { return errors_of(parse_job(text, "job.yaml")); }

std::string classifier(const std::string& dataset, int classes) {
  return "dataset: " + dataset +
         "\nnetwork:\n  - {type: flatten}\n  - {name: head, type: dense, units: " + std::to_string(classes) +
         "}\nloss: softmax_cross_entropy\n";
}

std::string tokens(const std::string& dataset, int vocab) {
  return "dataset: " + dataset +
         "\nnetwork:\n  - {type: flatten}\n  - {name: emb, type: embedding, units: 2, vocab: " + std::to_string(vocab) +
         "}\n";
}

/// 4 images of 1 x 2 pixels: 0 1, 2 3, 4 5, 6 7; labels 0 to 3.
struct Digits {
  ScratchFolder folder;
  Digits() {
    folder.write("train-images-idx3-ubyte", idx_bytes({4, 1, 2}));
    folder.write("train-labels-idx1-ubyte", idx_bytes({4}));
  }
  std::string set(const std::string& more = "") const {
    return "{type: mnist, path: " + folder.path() + ", batch: 2" + more + "}";
  }
};

}  // namespace

TEST_CASE("random labels must be below the number of classes of the loss") {
  CHECK(errors(classifier("{type: random, shape: [4], classes: 10, batch: 4}", 10)).empty());
  CHECK(errors(classifier("{type: random, shape: [4], classes: 11, batch: 4}", 10)) ==
        "1:46 dataset.classes: labels are drawn from 0 to 10, but the loss (softmax_cross_entropy) supports 0 to 9\n");
}

TEST_CASE("a constant label must be a class") {
  CHECK(errors(classifier("{type: constant, shape: [4], label_value: 9, batch: 4}", 10)).empty());
  CHECK(errors(classifier("{type: constant, shape: [4], label_value: 10, batch: 4}", 10)) ==
        "1:52 dataset.label_value: labels are 10, but the loss (softmax_cross_entropy) supports 0 to 9\n");
  CHECK(errors(classifier("{type: constant, shape: [4], label_value: -1, batch: 4}", 10)) ==
        "1:52 dataset.label_value: labels are -1, but the loss (softmax_cross_entropy) supports 0 to 9\n");
}

TEST_CASE("the labels of a file are read, and the first one that is not a class is named") {
  const Digits digits;
  CHECK(errors(classifier(digits.set(), 4)).empty());
  CHECK(errors(classifier(digits.set(), 3))
            .find("dataset.path: sample 3 has label 3, but the loss (softmax_cross_entropy) supports 0 to 2") !=
        std::string::npos);
}

TEST_CASE("tokens must be rows of the table, also behind layers that reshape them") {
  CHECK(errors(tokens("{type: random, shape: [2, 3], dtype: i32, classes: 8, batch: 4}", 8)).empty());
  CHECK(errors(tokens("{type: random, shape: [2, 3], dtype: i32, classes: 9, batch: 4}", 8)) ==
        "1:61 dataset.classes: elements of the data are drawn from 0 to 8, but layer 'emb' (embedding) supports 0 to "
        "7\n");
  CHECK(errors(tokens("{type: constant, shape: [2], dtype: i32, value: 8, batch: 4}", 8)) ==
        "1:58 dataset.value: elements of the data are 8, but layer 'emb' (embedding) supports 0 to 7\n");
}

TEST_CASE("tokens of a file are those after its transforms") {
  const Digits digits;
  const std::string as_tokens = ", transforms: [{rescale: {scale: 2}}, {type_cast: i32}]";
  CHECK(errors(tokens(digits.set(as_tokens), 15)).empty());
  CHECK(errors(tokens(digits.set(as_tokens), 12))
            .find("dataset.path: sample 3 has the element 12, but layer 'emb' (embedding) supports 0 to 11") !=
        std::string::npos);
}

TEST_CASE("the jobs of the tests pass, whatever their parallel mode") {
  for (const std::string& name : job_names()) {
    CAPTURE(name);
    CHECK(errors_of(job_spec(name)).empty());
  }
}

namespace {

/// A job on a table with the columns a and y, where y has three classes or words, and a validation on another table.
std::string with_validation(const ScratchFolder& folder, const std::string& training, const std::string& validation,
                            const std::string& more = "") {
  const auto write = [&](const char* name, const std::string& rows) {
    const std::string text = "a,y\n" + rows;
    return folder.write(name, {text.begin(), text.end()});
  };
  return "dataset: {type: csv, path: " + write("t.csv", training) + ", batch: 1, fields: {x: a, label: y}" + more +
         "}\nnetwork:\n  - {name: o, type: dense, units: 3, inputs: [x]}\nloss: softmax_cross_entropy\n"
         "validation: {dataset: {path: " +
         write("v.csv", validation) + "}}\n";
}

}  // namespace

TEST_CASE("a label of the validation set that is not a class is named before the run") {
  const ScratchFolder folder;
  CHECK(errors(with_validation(folder, "1,0\n2,2\n", "1,0\n3,1\n")).empty());
  const std::string found = errors(with_validation(folder, "1,0\n2,2\n", "1,0\n3,7\n"));
  CHECK(found.find("validation.dataset.path: " + folder.path() +
                   "/v.csv:3 has label 7, but the loss (softmax_cross_entropy) supports 0 to 2") != std::string::npos);
}

TEST_CASE(
    "a sample of the validation set that cannot be read is named before the run, unless such samples are skipped") {
  const ScratchFolder folder;
  CHECK(errors(with_validation(folder, "1,0\n2,2\n", "1,0\noops,1\n")).find("v.csv:3: column 'a': expected a number") !=
        std::string::npos);
  CHECK(errors(with_validation(folder, "1,cat\n2,dog\n", "1,cat\n3,fox\n"))
            .find("v.csv:3: column 'y': 'fox' is not one of the 2 classes") != std::string::npos);
  CHECK(errors(with_validation(folder, "1,0\n2,2\n", "1,0\noops,1\n", ", on_error: skip")).empty());
}

TEST_CASE("a token of the validation's files that the table has no row for is named before the run") {
  const ScratchFolder folder;
  const auto text = [&](const char* name, const std::string& bytes) {
    return folder.write(name, {bytes.begin(), bytes.end()});
  };
  const std::string job = "dataset: {type: text, path: " + text("t.txt", "abcabcabc") +
                          ", length: 4, batch: 1}\nnetwork:\n  - {name: e, type: embedding, vocab: 120, units: 2}\n"
                          "  - {name: o, type: dense, units: 120}\nloss: softmax_cross_entropy\n"
                          "validation: {dataset: {path: " +
                          text("v.txt", "abcabcabz") + "}}\n";
  CHECK(errors(job).find("validation.dataset.path: " + folder.path() + "/v.txt: token 8 of the file is 122") !=
        std::string::npos);
}
