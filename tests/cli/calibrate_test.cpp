// trainctl calibrate and the predictions of trainctl plan.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
using nlohmann::json;

namespace {

const char* const kJob = R"(
dataset: {type: random, shape: [24], label_dtype: i32, classes: 8, batch: 16}
network:
  - {name: a, type: dense, units: 32}
  - {type: relu}
  - {name: b, type: dense, units: 8}
loss: softmax_cross_entropy
optimizer: {type: sgd, learning_rate: 0.01}
launch: {device: cpu, ranks: 2}
parallel: {mode: data_parallel}
)";

/// A folder with the job, in which machines are kept too.
struct Place {
  Place() {
    std::ofstream(scratch.path() + "/job.yaml") << kJob;
    setenv("XDG_CONFIG_HOME", scratch.path().c_str(), 1);
  }
  ~Place() { unsetenv("XDG_CONFIG_HOME"); }

  CommandResult command(const std::vector<std::string>& words) const { return trainctl_command(scratch.path(), words); }
  json plan(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"plan", "job.yaml", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = command(words);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return json::parse(result.out);
  }
  json machine(const std::string& name) const {
    return json::parse(std::ifstream(scratch.path() + "/trainctl/machines/" + name + ".json"));
  }

  Scratch scratch;
};

}  // namespace

TEST_CASE("calibrate measures the job's kernels once each, keeps what it has, and plans are predicted from it") {
  const Place place;
  const CommandResult first =
      place.command({"calibrate", "job.yaml", "--name", "lab", "--samples", "2", "--device", "cpu"});
  REQUIRE_MESSAGE(first.exit_code == 0, first.err);
  const json machine = place.machine("lab");
  CHECK(machine["name"] == "lab");
  CHECK(machine["source"].get<std::string>().starts_with("measured 2"));
  REQUIRE(machine["kernels"].contains("matmul f32 f32 f32 -> f32"));
  size_t calls = 0;
  for (const auto& [key, samples] : machine["kernels"].items()) {
    calls += samples.size();
    for (const json& sample : samples) CHECK(sample["seconds"].get<double>() > 0);
  }
  if (std::thread::hardware_concurrency() >= 2) {
    CHECK(machine["calls"].contains("all_reduce 2"));
    CHECK(machine["calls"]["message 2"].size() == machine["calls"]["all_reduce 2"].size());
  }
  CHECK(first.out.find("kernels: " + std::to_string(calls) + " calls measured") != std::string::npos);

  REQUIRE(machine["steps"].size() == 1);
  CHECK(machine["steps"][0]["seconds"].get<double>() > 0);
  CHECK(machine["steps"][0]["kernels"].get<int>() > 0);

  const CommandResult second =
      place.command({"calibrate", "job.yaml", "--name", "lab", "--samples", "2", "--device", "cpu"});
  CHECK(second.out.find("kernels: 0 calls measured") != std::string::npos);
  for (const char* kept : {"kernels", "calls", "links", "memory_bytes_per_second", "flops_per_second"}) {
    CAPTURE(kept);
    CHECK(place.machine("lab")[kept] == machine[kept]);
  }

  const json estimate = place.plan({"launch.machine=lab"})["estimate"];
  CHECK(estimate["machine"] == "lab");
  CHECK(estimate["low"].get<double>() < estimate["seconds"].get<double>());
  CHECK(estimate["high"].get<double>() > estimate["seconds"].get<double>());
  double parts = 0;
  for (const auto& [name, seconds] : estimate["parts"].items()) parts += seconds.get<double>();
  CHECK(parts == doctest::Approx(estimate["seconds"].get<double>()));
}

TEST_CASE("a plan is predicted for the machine that is named, and only then") {
  const Place place;
  CHECK(!place.plan({}).contains("estimate"));
  const double slow = place.plan({"launch.machine=cpu", "dataset.batch=65536"})["estimate"]["seconds"];
  const double fast = place.plan({"launch.machine=h200x8", "dataset.batch=65536"})["estimate"]["seconds"];
  CHECK(fast < slow);
  CHECK(!place.plan({"launch.machine=cpu"})["estimate"].contains("memory"));
  const json memory = place.plan({"launch.machine=h200x8"})["estimate"]["memory"];
  CHECK(memory["fits"] == true);
  CHECK(memory["bytes"] == place.plan({"launch.machine=h200x8"})["rank_classes"][0]["memory"]["total"]);
  const std::vector<std::string> huge = {"plan", "job.yaml", "launch.machine=a100x8", "dataset.batch=536870912",
                                         "dataset.shuffle=false"};
  CHECK(place.command(huge).out.find("does not fit this machine: rank 0 needs ") != std::string::npos);
  const CommandResult text = place.command({"plan", "job.yaml", "launch.machine=h100x8"});
  CHECK(text.out.find("predicted step on h100x8 (data sheets): ") != std::string::npos);
}

TEST_CASE("a machine that is not there is an error with the names of those that are") {
  const Place place;
  const CommandResult result = place.command({"plan", "job.yaml", "launch.machine=h300x8"});
  CHECK(result.exit_code == 2);
  CHECK(result.err.find("launch.machine: there is no machine 'h300x8'") != std::string::npos);
  CHECK(result.err.find("h200x8") != std::string::npos);
  std::ofstream(place.scratch.path() + "/odd.json") << "{}";
  const CommandResult odd = place.command({"plan", "job.yaml", "launch.machine=./odd.json"});
  CHECK(odd.exit_code == 3);
  CHECK(odd.err.find("odd.json has no field 'name'") != std::string::npos);
}

TEST_CASE("the predicted step is written as a trace, an event an instruction") {
  const Place place;
  const json report = place.plan({"--timeline", "step.json"});
  CHECK(report["estimate"]["machine"] == "cpu");
  const json trace = json::parse(std::ifstream(place.scratch.path() + "/step.json"));
  size_t events = 0;
  double end = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["tid"] == 0) continue;
    ++events;
    end = std::max(end, event["ts"].get<double>() + event["dur"].get<double>());
  }
  CHECK(events >= report["rank_classes"][0]["instructions"].get<size_t>() - 2);
  CHECK(end == doctest::Approx(report["estimate"]["seconds"].get<double>() * 1e6).epsilon(1e-3));
}

TEST_CASE("a calibration without jobs measures the step of each of its examples") {
  const Place place;
  const CommandResult result =
      place.command({"calibrate", "--name", "own", "--samples", "1", "--most", "2", "--device", "cpu"});
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  CHECK(result.out.find("not measured") == std::string::npos);
  CHECK(place.machine("own")["steps"].size() == 3);
}
