// Tests of `print`: which part of a tensor each rank shows, and whole tensors in files.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

struct Npy {
  std::string shape;  ///< "(16, 4)"
  std::vector<float> values;
  friend bool operator==(const Npy&, const Npy&) = default;
};

/// Reads the format that numpy/lib/format.py describes, independently of the code that writes it.
Npy load(const std::string& path) {
  const std::string text = slurp(path);
  INFO(path);
  REQUIRE(text.size() >= 64);
  REQUIRE(text.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  const size_t length = static_cast<unsigned char>(text[8]) + 256u * static_cast<unsigned char>(text[9]);
  const std::string header = text.substr(10, length);
  REQUIRE(contains(header, "'descr': '<f4'"));
  REQUIRE(contains(header, "'fortran_order': False"));
  const size_t open = header.find("'shape': ") + 9;
  Npy npy{header.substr(open, header.find(')') + 1 - open), {}};
  npy.values.resize((text.size() - 10 - length) / sizeof(float));
  std::memcpy(npy.values.data(), text.data() + 10 + length, npy.values.size() * sizeof(float));
  return npy;
}

void check_close(const Npy& a, const Npy& b) {
  CHECK(a.shape == b.shape);
  REQUIRE(a.values.size() == b.values.size());
  for (size_t i = 0; i < a.values.size(); ++i) {
    INFO(i);
    CHECK(std::abs(a.values[i] - b.values[i]) <= 1e-6f * std::max(1.0f, std::abs(b.values[i])));
  }
}

const char* const kPrintJob = R"(
name: printed
seed: 5
dataset: {type: random, shape: [8], label_shape: [4], label_dtype: f32, batch: 16, samples: 64}
network:
  - {name: fc1, type: dense, units: 16}
  - {name: act, type: relu}
  - {name: fc2, type: dense, units: 4}
  - {name: wide, type: reshape, inputs: fc1, shape: [2, 8]}
  - {name: turned, type: transpose, perm: [1, 0, 2]}
  - {name: total, type: reduce_sum, inputs: fc1, dims: [0]}
loss: {type: mse, input: fc2}
optimizer: {type: adam, learning_rate: 0.01}
train: {steps: 2}
parallel: {micro_batches: 2}
launch: {device: cpu}
print: {tensors: [fc1, fc2, turned, total], format: npy}
)";

/// Runs the job with these overrides, and gives access to its folder of tensors.
struct PrintedRun {
  Scratch scratch;
  CommandResult result;

  explicit PrintedRun(std::vector<std::string> overrides, const std::string& job = kPrintJob) {
    std::ofstream(scratch.path() + "/job.yaml") << job;
    overrides.insert(overrides.begin(), {"run", "job.yaml"});
    result = trainctl_command(scratch.path(), overrides);
    INFO(result.out << result.err);
    CHECK(result.exit_code == kExitDone);
  }
  std::string folder() const { return scratch.path() + "/log_output/1/tensors"; }
  Npy tensor(const std::string& name, int step = 1) const {
    return load(fmt::format("{}/step.{}/{}.npy", folder(), step, name));
  }
};

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("npy files hold the whole tensors of the global batch, the same under every plan") {
  const PrintedRun one({});
  CHECK(contains(one.result.out, "printed tensors in log_output/1/tensors/step.N/NAME.npy"));
  CHECK(one.tensor("fc1").shape == "(16, 16)");
  CHECK(one.tensor("fc2").shape == "(16, 4)");
  CHECK(one.tensor("turned").shape == "(2, 16, 8)");  // the batch is its second dim
  CHECK(one.tensor("total").shape == "(2, 16)");      // no dim of the batch: one row a micro-batch
  const std::vector<Words> plans = {
      {"launch.ranks=4", "parallel.mode=data_parallel"},
      {"launch.ranks=4", "parallel.mode=data_parallel", "parallel.optimizer_shard.level=3",
       "parallel.optimizer_shard.min_kb=0"},
      {"launch.ranks=4", "parallel.mode=semi_auto_parallel",
       "parallel.strategies={fc1: [[2, 1], [2, 1]], fc2: [[2, 2], [1, 2]]}"},
      {"launch.ranks=4", "parallel.mode=semi_auto_parallel",
       "parallel.strategies={fc1: [[1, 1], [4, 1]], fc2: [[1, 4], [1, 4]]}"},
      {"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.stages=2",
       "parallel.stage_config={fc1: 0, act: 0, fc2: 1, wide: 1, turned: 1, total: 1}"},
      {"launch.ranks=3", "parallel.mode=semi_auto_parallel"},
  };
  for (const Words& plan : plans) {
    CAPTURE(plan.back());
    const PrintedRun run(plan);
    for (const char* name : {"fc1", "fc2", "turned", "total"})
      for (int step : {1, 2}) check_close(run.tensor(name, step), one.tensor(name, step));
  }
}

TEST_CASE("micro-batches follow each other along the batch in the file, as one pass over the batch has them") {
  const PrintedRun parts({}), whole({"parallel.micro_batches=1"});
  for (const char* name : {"fc1", "fc2", "turned"}) check_close(parts.tensor(name), whole.tensor(name));
  CHECK(whole.tensor("total").shape == "(16,)");
  const Npy rows = parts.tensor("fc1"), sums = parts.tensor("total");
  for (size_t m = 0; m < 2; ++m) {
    double sum = 0;
    for (size_t r = 0; r < 8; ++r) sum += rows.values[(m * 8 + r) * 16];
    CHECK(sums.values[m * 16] == doctest::Approx(sum));
  }
  const PrintedRun single_rows({"parallel.micro_batches=16"});
  check_close(single_rows.tensor("fc1"), whole.tensor("fc1"));
  check_close(single_rows.tensor("turned"), whole.tensor("turned"));
}

TEST_CASE("a plan that changes no sums changes no bit of the files") {
  const PrintedRun one({}), stages({"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2",
                                    "parallel.stage_config={fc1: 0, act: 0, fc2: 1, wide: 0, turned: 0, total: 0}"});
  for (const char* name : {"fc1", "fc2", "turned", "total"}) CHECK(one.tensor(name) == stages.tensor(name));
}

TEST_CASE("print.every leaves out the steps between") {
  const PrintedRun run({"train.steps=4", "print.every=3"});
  for (int step = 1; step <= 4; ++step)
    CHECK(fs::exists(fmt::format("{}/step.{}/fc1.npy", run.folder(), step)) == (step == 1 || step == 4));
  CHECK_FALSE(contains(run.result.out, "fc1 (rank"));
}

TEST_CASE("the steps in files count over the whole run, even if it resumes from a checkpoint") {
  const PrintedRun run({"train.steps=3", "train.checkpoint={}"});
  const CommandResult resumed =
      trainctl_command(run.scratch.path(), {"run", "job.yaml", "--resume", "train.steps=5", "print.every=4"});
  INFO(resumed.out << resumed.err);
  REQUIRE(resumed.exit_code == kExitDone);
  const std::string folder = run.scratch.path() + "/log_output/2/tensors";
  CHECK(fs::exists(folder + "/step.5/fc1.npy"));
  CHECK_FALSE(fs::exists(folder + "/step.1"));
  CHECK_FALSE(fs::exists(folder + "/step.4"));
}

TEST_CASE("printed text says which part of the tensor the rank shows") {
  const auto shown = [](const Words& overrides, int rank) {
    Words words = {"print=[fc1, turned]", "train.steps=1"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    const PrintedRun run(words);
    return slurp(fmt::format("{}/log_output/1/rank.{}/stdout", run.scratch.path(), rank));
  };
  const std::string parallel = "parallel.mode=data_parallel";
  const std::string one = shown({}, 0);
  CHECK(contains(one, "fc1 (rank 0, micro-batch 0, rows 0..7 of 16, cols 0..15): [["));
  CHECK(contains(one, "fc1 (rank 0, micro-batch 1, rows 8..15 of 16, cols 0..15): [["));
  CHECK(contains(one, "turned (rank 0, micro-batch 1, [0..1, 8..15 of 16, 0..7]): [[["));
  const std::string third = shown({"launch.ranks=4", parallel}, 3);
  CHECK(contains(third, "fc1 (rank 3, micro-batch 1, rows 14..15 of 16, cols 0..15): [["));
  const std::string cut = shown({"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.micro_batches=1",
                                 "parallel.strategies={fc1: [[2, 1], [2, 1]]}"},
                                1);
  CHECK(contains(cut, "fc1 (rank 1, rows 0..7 of 16, cols 8..15 of 16): [["));
  CHECK(contains(shown({"parallel.micro_batches=1"}, 0), "fc1 (rank 0): [["));
}

TEST_CASE("hybrid_parallel writes a whole tensor if the parts make one, else a file for each rank") {
  const PrintedRun run({}, R"(
dataset: {type: random, shape: [8], label_shape: [4], label_dtype: f32, batch: 16, samples: 16}
network:
  - {name: a, type: dense, units: 6}
  - {name: gathered, type: all_gather}
  - {name: b, type: dense, units: 2, bias: false}
  - {name: summed, type: all_reduce, inputs: a}
parallel: {mode: hybrid_parallel, micro_batches: 2, strategies: {b: [[1, 1], [2, 1]]}}
launch: {ranks: 2, device: cpu}
train: {steps: 1}
print: {tensors: [a, gathered, b, summed], format: npy}
)");
  CHECK(run.tensor("a").shape == "(16, 6)");
  CHECK(run.tensor("gathered") == run.tensor("a"));
  CHECK(run.tensor("b").shape == "(16, 4)");
  CHECK_FALSE(fs::exists(run.folder() + "/step.1/summed.npy"));  // the sum of different rows
  for (int rank : {0, 1}) CHECK(run.tensor(fmt::format("summed.rank.{}", rank)).shape == "(8, 6)");
}
