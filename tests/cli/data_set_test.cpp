// Jobs on samples in files, and the commands that look into them.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/train/data/image/decode.h"
#include "engine/train/data/image/png_file.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"
#include "tests/train/sources/npz_files.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

void data_set_write(const Scratch& scratch, const std::string& name, const std::string& text) {
  std::ofstream(scratch.path() + "/" + name, std::ios::binary) << text;
}

/// A picture that is bright on the left (class 0) or on the right (class 1).
void write_picture(const std::string& path, int number, int label) {
  Image image;
  image.resize(12 + number % 3, 16, 3);
  for (int64_t y = 0; y < image.view().height; ++y)
    for (int64_t x = 0; x < 16; ++x)
      for (int64_t c = 0; c < 3; ++c)
        image.row(y)[x * 3 + c] = static_cast<uint8_t>((x < 8) == (label == 0) ? 200 + (number + c) % 50 : 20);
  write_png(path, image.view());
}

void write_photos(const Scratch& scratch, int count) {
  for (const char* name : {"left", "right"}) fs::create_directories(scratch.path() + "/photos/" + name);
  for (int i = 0; i < count; ++i)
    for (int label = 0; label < 2; ++label)
      write_picture(scratch.path() + "/photos/" + (label == 0 ? "left/" : "right/") + std::to_string(i) + ".png", i,
                    label);
}

std::string photos_job(const std::string& more) {
  return "dataset:\n  type: image_folder\n  path: photos\n  batch: 8\n" + more +
         "  transforms: [{center_crop: [12, 12]}, {rescale: {scale: 0.01}}]\n"
         "network:\n  - {name: flat, type: flatten, inputs: [image]}\n  - {name: out, type: dense, units: 2}\n"
         "loss: softmax_cross_entropy\nmetrics: [accuracy]\noptimizer: {learning_rate: 0.05}\n"
         "train: {epochs: 4}\nlaunch: {device: cpu}\n";
}

double last_accuracy(const Scratch& scratch) {
  std::ifstream metrics(scratch.path() + "/log_output/1/metrics.jsonl");
  double accuracy = -1;
  for (std::string line; std::getline(metrics, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (row.contains("accuracy")) accuracy = row["accuracy"];
  }
  return accuracy;
}

/// Losses of all steps of job.yaml, and of all validations.
std::vector<double> losses_of(const Scratch& scratch, std::vector<std::string> overrides) {
  fs::remove_all(scratch.path() + "/log_output");
  overrides.insert(overrides.begin(), {"run", "job.yaml"});
  const CommandResult run = trainctl_command(scratch.path(), overrides);
  INFO(run.out << run.err);
  REQUIRE(run.exit_code == kExitDone);
  std::vector<double> all;
  std::ifstream metrics(scratch.path() + "/log_output/1/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (row.contains("run_step") && row.contains("loss")) all.push_back(row["loss"]);
  }
  return all;
}

}  // namespace

TEST_CASE("a job trains on pictures in folders, whose layers name the fields of a sample") {
  const Scratch scratch;
  write_photos(scratch, 20);
  data_set_write(scratch, "job.yaml",
                 photos_job("  split: {train: 0.8, validation: 0.2}\n") + "validation: {every_epochs: 2}\n");
  const CommandResult run = trainctl_command(scratch.path(), {"run", "job.yaml"});
  INFO(run.out << run.err);
  REQUIRE(run.exit_code == kExitDone);
  CHECK(last_accuracy(scratch) == 1.0);
}

TEST_CASE("the losses are the same under data parallelism, and for any number of workers") {
  const Scratch scratch;
  write_photos(scratch, 16);
  data_set_write(scratch, "job.yaml", photos_job(""));
  const auto losses = [&](const std::vector<std::string>& overrides) { return losses_of(scratch, overrides); };
  const std::vector<double> one = losses({});
  REQUIRE(one.size() >= 16);
  CHECK(losses({"dataset.workers=3", "dataset.prefetch=2"}) == one);
  const std::vector<double> two = losses({"launch.ranks=2", "parallel.mode=data_parallel"});
  REQUIRE(two.size() == one.size());
  for (size_t i = 0; i < one.size(); ++i) CHECK(two[i] == doctest::Approx(one[i]).epsilon(1e-4));
}

TEST_CASE("a job with mixup and cutmix has the same losses under any plan, and its validation mixes nothing") {
  const Scratch scratch;
  write_photos(scratch, 16);
  data_set_write(scratch, "job.yaml", R"(dataset:
  type: image_folder
  path: photos
  batch: 8
  split: {train: 0.8, validation: 0.2}
  transforms:
    image: [{center_crop: [12, 12]}, {rescale: {scale: 0.01}}, {mixup: {alpha: 0.4, p: 0.5}}, cutmix]
    label: [{one_hot: 2}]
network:
  - {name: flat, type: flatten, inputs: [image]}
  - {name: out, type: dense, units: 2}
loss: {type: softmax_cross_entropy, label_smoothing: 0.1}
optimizer: {learning_rate: 0.05}
train: {epochs: 4}
validation: {every_epochs: 4}
launch: {device: cpu}
)");
  const auto losses = [&](const std::vector<std::string>& overrides) { return losses_of(scratch, overrides); };
  const std::vector<double> one = losses({});
  REQUIRE(one.size() >= 12);
  CHECK(losses({"dataset.workers=3", "dataset.prefetch=2"}) == one);
  for (const std::vector<std::string>& plan :
       {std::vector<std::string>{"launch.ranks=2", "parallel.mode=data_parallel"},
        std::vector<std::string>{"launch.ranks=2", "parallel.mode=data_parallel", "parallel.micro_batches=2",
                                 "parallel.full_batch=true"}}) {
    const std::vector<double> other = losses(plan);
    REQUIRE(other.size() == one.size());
    for (size_t i = 0; i < one.size(); ++i) CHECK(other[i] == doctest::Approx(one[i]).epsilon(1e-4));
  }
  const CommandResult plain = trainctl_command(
      scratch.path(), {"check", "job.yaml", "dataset.transforms={image: [{center_crop: [12, 12]}, to_float, mixup]}"});
  INFO(plain.err);
  CHECK(plain.exit_code == kExitSpec);
  CHECK(plain.err.find("one_hot") != std::string::npos);
}

TEST_CASE("data check counts samples and classes, and names broken samples with exit code 3") {
  const Scratch scratch;
  write_photos(scratch, 5);
  const CommandResult good = trainctl_command(scratch.path(), {"data", "check", "photos"});
  INFO(good.out << good.err);
  CHECK(good.exit_code == kExitDone);
  CHECK(contains(good.out, "10 samples, 0 broken\n"));
  CHECK(contains(good.out, "image: images from [12, 16, 3] to [14, 16, 3]"));
  CHECK(contains(good.out, "0 (left): 5, 1 (right): 5"));

  fs::resize_file(scratch.path() + "/photos/left/3.png", 60);
  data_set_write(scratch, "job.yaml", photos_job(""));
  const CommandResult bad = trainctl_command(scratch.path(), {"data", "check", "job.yaml"});
  INFO(bad.out << bad.err);
  CHECK(bad.exit_code == kExitEnv);
  CHECK(contains(bad.out, "10 samples, 1 broken\n"));
  CHECK(contains(bad.out, "photos/left/3.png"));
}

TEST_CASE("a broken picture ends the run and is named, or with on_error: skip it is counted and the run continues") {
  const Scratch scratch;
  write_photos(scratch, 20);
  fs::resize_file(scratch.path() + "/photos/right/7.png", 60);
  data_set_write(scratch, "job.yaml", photos_job(""));
  const CommandResult stopped = trainctl_command(scratch.path(), {"run", "job.yaml"});
  CHECK(stopped.exit_code != kExitDone);
  CHECK(contains(stopped.out + stopped.err, "photos/right/7.png"));
  const CommandResult skipped = trainctl_command(scratch.path(), {"run", "job.yaml", "dataset.on_error=skip"});
  INFO(skipped.out << skipped.err);
  CHECK(skipped.exit_code == kExitDone);
  CHECK(contains(skipped.out, "skipped up to step"));
  CHECK(contains(skipped.out, "photos/right/7.png"));
}

TEST_CASE("data show draws the first samples in rows, and lists their labels") {
  const Scratch scratch;
  write_photos(scratch, 8);
  data_set_write(scratch, "job.yaml", photos_job(""));
  const CommandResult show = trainctl_command(scratch.path(), {"data", "show", "job.yaml", "-n", "6", "-o", "s.png"});
  INFO(show.out << show.err);
  REQUIRE(show.exit_code == kExitDone);
  CHECK(contains(show.out, "s.png: 6 samples of image [12, 12, 3], 3 per row\n"));
  CHECK(contains(show.out, "label 1 (right)"));
  std::ifstream file(scratch.path() + "/s.png", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const ImageSize size = image_size(std::as_bytes(std::span(bytes)), "s.png");
  CHECK(size == ImageSize{2 * 12 + 2, 3 * 12 + 2 * 2});
}

TEST_CASE("bench data reads with one worker and with more, and says which stage takes the time") {
  const Scratch scratch;
  write_photos(scratch, 8);
  data_set_write(scratch, "job.yaml", photos_job(""));
  const CommandResult bench =
      trainctl_command(scratch.path(), {"bench", "data", "job.yaml", "--workers", "3", "--seconds", "0.05", "--json"});
  INFO(bench.out << bench.err);
  REQUIRE(bench.exit_code == kExitDone);
  const nlohmann::json json = nlohmann::json::parse(bench.out);
  CHECK(json["samples"] == 16);
  CHECK(json["fields"] == "image [12, 12, 3] of f32, label [] of i32");
  REQUIRE(json["rows"].size() == 3);
  for (const auto& row : json["rows"]) {
    CHECK(row["samples_per_second"] > 0);
    CHECK(row["seconds_per_sample"]["decode"] > 0);
  }
  const CommandResult text =
      trainctl_command(scratch.path(), {"bench", "data", "job.yaml", "--workers", "1", "--seconds", "0.05"});
  CHECK(contains(text.out, "bottleneck: "));
}

TEST_CASE("a table's columns become named fields, of numbers and of words") {
  const Scratch scratch;
  std::string table = "age,height,town,species\n";
  for (int i = 0; i < 40; ++i)
    table += std::to_string(i) + "," + std::to_string(100 - i) + (i % 3 == 0 ? ",Bern," : ",\"Chur, old\",") +
             (i % 2 == 0 ? "cat" : "dog") + "\n";
  data_set_write(scratch, "animals.csv", table);
  data_set_write(
      scratch, "job.yaml",
      "dataset: {type: csv, path: animals.csv, batch: 8, fields: {numbers: [age, height], town: town, label: "
      "species}}\n"
      "network:\n  - {name: emb, type: embedding, vocab: 2, units: 4, inputs: [town]}\n"
      "  - {name: flat, type: flatten}\n  - {name: fc, type: dense, units: 4, inputs: [numbers]}\n"
      "  - {name: both, type: add, inputs: [fc, flat]}\n  - {name: out, type: dense, units: 2}\n"
      "loss: softmax_cross_entropy\noptimizer: {learning_rate: 0.00001}\ntrain: {epochs: 2}\nlaunch: {device: cpu}\n");
  const CommandResult run = trainctl_command(scratch.path(), {"run", "job.yaml"});
  INFO(run.out << run.err);
  REQUIRE(run.exit_code == kExitDone);
  const CommandResult check = trainctl_command(scratch.path(), {"data", "check", "job.yaml"});
  INFO(check.out << check.err);
  CHECK(contains(check.out, "40 samples, 0 broken\n"));
  CHECK(contains(check.out, "0 (cat): 20, 1 (dog): 20"));
}

TEST_CASE("check finds labels for which the network has no class") {
  const Scratch scratch;
  write_photos(scratch, 8);
  fs::create_directories(scratch.path() + "/photos/up");
  write_picture(scratch.path() + "/photos/up/1.png", 1, 0);
  data_set_write(scratch, "job.yaml", photos_job(""));
  const CommandResult check = trainctl_command(scratch.path(), {"check", "job.yaml"});
  CHECK(check.exit_code == kExitSpec);
  CHECK(contains(check.err,
                 "the data set has 3 classes, so labels range up to 2, but the loss (softmax_cross_entropy) supports "
                 "0 to 1"));
}

TEST_CASE("random samples of 10 billion plan and start") {
  const Scratch scratch;
  data_set_write(scratch, "job.yaml",
                 "dataset: {type: random, shape: [4], classes: 3, samples: 10000000000, batch: 64}\n"
                 "network:\n  - {name: out, type: dense, units: 3}\nloss: softmax_cross_entropy\n"
                 "train: {steps: 3}\nlaunch: {device: cpu}\n");
  const CommandResult run = trainctl_command(scratch.path(), {"run", "job.yaml"});
  INFO(run.out << run.err);
  CHECK(run.exit_code == kExitDone);
}

namespace {

/// A csv job with a validation on v.csv; both tables have the columns a and y.
std::string tables_job(const std::string& train) {
  return "name: v\ndataset: {type: csv, path: t.csv, batch: 3, fields: {x: a, label: y}}\n"
         "network: [{name: o, type: dense, units: 3, inputs: [x]}]\nloss: softmax_cross_entropy\n"
         "validation: {dataset: {path: v.csv}}\noptimizer: {type: sgd, learning_rate: 0.001}\ntrain: " +
         train + "\nlaunch: {ranks: 1, device: cpu}\n";
}

}  // namespace

TEST_CASE("check, run and data check find a broken sample of the validation set before anything is trained") {
  const Scratch scratch;
  data_set_write(scratch, "t.csv", "a,y\n1,0\n2,1\n3,2\n");
  data_set_write(scratch, "v.csv", "a,y\n1,0\noops,1\n");
  data_set_write(scratch, "job.yaml", tables_job("{epochs: 2}"));
  for (const char* command : {"check", "run"}) {
    CAPTURE(command);
    const CommandResult result = trainctl_command(scratch.path(), {command, "job.yaml"});
    CHECK(result.exit_code == kExitSpec);
    CHECK(contains(result.err, "validation.dataset.path: a sample cannot be read: "));
    CHECK(contains(result.err, "v.csv:3: column 'a': expected a number"));
  }
  CHECK_FALSE(fs::exists(scratch.path() + "/log_output"));
  const CommandResult data = trainctl_command(scratch.path(), {"data", "check", "job.yaml"});
  INFO(data.out << data.err);
  CHECK(data.exit_code == kExitEnv);
  CHECK(contains(data.out, "3 samples, 0 broken\n"));
  CHECK(contains(data.out, "validation: 2 samples, 1 broken\n"));
}

TEST_CASE("check, run and data check read the checksums of the arrays that an npz file stores") {
  const Scratch scratch;
  const std::string data = npy("|u1", "4, 2", "abcdefgh"), label = npy("|u1", "4", std::string("\0\1\0\1", 4));
  std::string file = zip_of({{"data.npy", data}, {"label.npy", label}});
  data_set_write(scratch, "t.npz", file);
  file[file.find("abcdefgh") + 5] ^= 1;
  data_set_write(scratch, "v.npz", file);
  data_set_write(scratch, "job.yaml",
                 "dataset: {type: npz, path: t.npz, batch: 2, transforms: [{rescale: {scale: 0.01}}]}\n"
                 "network: [{name: o, type: dense, units: 2}]\nloss: softmax_cross_entropy\n"
                 "optimizer: {learning_rate: 0.001}\nvalidation: {dataset: {path: v.npz}}\n"
                 "train: {epochs: 1}\nlaunch: {ranks: 1, device: cpu}\n");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"check"}, {"run"}, {"data", "check"}}) {
    std::vector<std::string> words = command;
    words.push_back("job.yaml");
    CAPTURE(words.front());
    const CommandResult of_validation = trainctl_command(scratch.path(), words);
    CHECK(of_validation.exit_code == kExitSpec);
    CHECK(contains(of_validation.err, "validation.dataset.path: "));
    CHECK(contains(of_validation.err, "v.npz: 'data.npy': its content does not match its checksum"));
    words.push_back("dataset.path=v.npz");
    const CommandResult of_training = trainctl_command(scratch.path(), words);
    CHECK(of_training.exit_code == kExitSpec);
    CHECK(contains(of_training.err, ": dataset.path: "));
    CHECK(contains(of_training.err, "v.npz: 'data.npy': its content does not match its checksum"));
  }
}

TEST_CASE("data check names the field of the set that cannot be opened, and its place in the job") {
  const Scratch scratch;
  data_set_write(scratch, "t.csv", "a,y\n1,0\n2,1\n");
  data_set_write(scratch, "v.csv", "b,y\n1,0\n");
  data_set_write(scratch, "job.yaml", tables_job("{epochs: 2}"));
  const auto error = [&](const std::string& override) {
    const CommandResult data = trainctl_command(scratch.path(), {"data", "check", "job.yaml", override});
    CHECK(data.exit_code == kExitSpec);
    return data.err;
  };
  const std::string of_validation = error("train.epochs=1"), of_training = error("dataset.path=v.csv");
  INFO(of_validation << of_training);
  CHECK(of_validation.starts_with("job.yaml:"));
  CHECK(contains(of_validation, ": validation.dataset.fields.x: "));
  CHECK(of_training.starts_with("job.yaml:"));
  CHECK(contains(of_training, ": dataset.fields.x: "));
}

TEST_CASE("data check counts samples with values that are not finite, and names the first") {
  const Scratch scratch;
  data_set_write(scratch, "t.csv", "a,y\n1,0\nnan,1\ninf,2\n");
  data_set_write(scratch, "v.csv", "a,y\n1,0\n");
  data_set_write(scratch, "job.yaml", tables_job("{epochs: 2}"));
  const CommandResult data = trainctl_command(scratch.path(), {"data", "check", "job.yaml"});
  INFO(data.out << data.err);
  CHECK(data.exit_code == kExitEnv);
  CHECK(contains(data.out, "2 samples have non-finite values; first: "));
  CHECK(contains(data.out, "t.csv:3: element 0 is nan\n"));
}

TEST_CASE("the state of an epoch's end is saved when the validation after it fails") {
  const Scratch scratch;
  std::string rows = "a,y\n";
  for (int i = 0; i < 20'000; ++i) rows += i == 1 ? "oops,1\n" : "1,1\n";  // start-up reads every second row of so many
  data_set_write(scratch, "t.csv", "a,y\n1,0\n2,1\n3,2\n4,0\n5,1\n6,2\n");
  data_set_write(scratch, "v.csv", rows);
  data_set_write(scratch, "job.yaml", tables_job("{epochs: 2}"));
  const std::string servers = "parallel={mode: parameter_server, servers: 2, sync: false}";
  int number = 0;
  for (const char* parallel : {"parallel={mode: data_parallel}", servers.c_str()}) {
    for (const char* train : {"train={epochs: 2, checkpoint: {every_epochs: 1}}", "train={epochs: 1, checkpoint: auto}",
                              "train={epochs: 1}"}) {
      CAPTURE(parallel);
      CAPTURE(train);
      const CommandResult run = trainctl_command(scratch.path(), {"run", "job.yaml", parallel, train});
      INFO(run.out << run.err);
      CHECK(run.exit_code == kExitRankFailed);
      CHECK(contains(run.out + run.err, "v.csv:3: column 'a': expected a number"));
      const std::string run_folder = scratch.path() + "/log_output/" + std::to_string(++number);
      CHECK(fs::exists(run_folder + "/checkpoints/step_00000002/checkpoint.json"));
    }
  }
}

TEST_CASE("a checkpoint that was written before its validation gets the validation's values") {
  const Scratch scratch;
  data_set_write(scratch, "t.csv", "a,y\n1,0\n2,1\n3,2\n4,0\n5,1\n6,2\n");
  data_set_write(scratch, "v.csv", "a,y\n1,0\n2,1\n");
  data_set_write(scratch, "job.yaml",
                 tables_job("{epochs: 3, checkpoint: {every_epochs: 1, async: false, keep: 3, keep_best: loss}}"));
  const CommandResult run = trainctl_command(scratch.path(), {"run", "job.yaml"});
  INFO(run.out << run.err);
  REQUIRE(run.exit_code == kExitDone);
  for (const char* step : {"2", "4", "6"}) {
    CAPTURE(step);
    std::ifstream file(scratch.path() + "/log_output/1/checkpoints/step_0000000" + step + "/checkpoint.json");
    const auto manifest = nlohmann::json::parse(file);
    CHECK(manifest.contains("metrics"));
    CHECK(manifest["best"].contains("loss"));
  }
}
