// trainctl calibrate and the predictions of trainctl plan.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/bench/step_calibration.h"
#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/machine/machine_text.h"
#include "engine/spec/parse.h"
#include "engine/train/job.h"
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
struct Folder {
  Folder() {
    std::ofstream(scratch.path() + "/job.yaml") << kJob;
    setenv("XDG_CONFIG_HOME", scratch.path().c_str(), 1);
  }
  ~Folder() { unsetenv("XDG_CONFIG_HOME"); }

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
  const Folder place;
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

  REQUIRE(machine["steps"].size() == 3);  // with the batch whole, and in 2 and 4 micro-batches
  for (const json& step : machine["steps"]) {
    CHECK(step["seconds"].get<double>() > 0);
    CHECK(step["kernels"].get<int>() > 0);
  }

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

TEST_CASE(
    "a long kernel is priced as in the steps that were run, those of other sizes as the nearest, short ones as alone") {
  JobSpec job = parse_job(kJob, "job", {"launch.ranks=1", "parallel.mode=stand_alone"});
  const PlannedJob planned = plan_job(std::move(job));
  RunStep step{"job", compile(planned, 0), {}};
  Machine machine = *find_machine("cpu");
  const Seconds timing{3e-6}, brief{5e-6}, alone{100e-6};
  std::string long_key;
  for (const Instruction& now : step.program.instructions) {
    if (now.opcode != Opcode::kernel) continue;
    std::vector<TensorInfo> in, out;
    for (const Operand& operand : now.inputs) in.push_back({operand.shape, operand.dtype});
    for (const Operand& operand : now.outputs) out.push_back({operand.shape, operand.dtype});
    const KernelDef& kernel = *kernel_of(now);
    const std::string key = kernel_key(kernel, in, out, now.attrs);
    if (machine.kernels.contains(key)) continue;  // one call of each key
    const bool is_long = kernel.is_product && long_key.empty();
    if (is_long) long_key = key;
    std::vector<KernelSample> samples = {{kernel_sizes(in, out), kernel_cost(kernel, in, out, now.attrs),
                                          is_long ? alone : brief, to_string(now.attrs)}};
    KernelSample larger = samples[0];
    larger.cost.flops *= 4;
    larger.cost.bytes *= 4;
    for (double& size : larger.sizes) size += 2;
    larger.seconds = 4 * larger.seconds;
    samples.push_back(std::move(larger));
    machine.kernels.emplace(key, KernelModel(std::move(samples)));
  }
  REQUIRE(!long_key.empty());
  const std::vector<double>& sizes = machine.kernels.at(long_key).samples()[0].sizes;
  for (const Instruction& now : step.program.instructions) {
    MeasuredStep::Launch& launch = step.measured.launches.emplace_back();
    if (now.opcode != Opcode::kernel) continue;
    std::vector<TensorInfo> in, out;
    for (const Operand& operand : now.inputs) in.push_back({operand.shape, operand.dtype});
    for (const Operand& operand : now.outputs) out.push_back({operand.shape, operand.dtype});
    const bool is_long = kernel_key(*kernel_of(now), in, out, now.attrs) == long_key && kernel_sizes(in, out) == sizes;
    launch = {timing + (is_long ? 1.3 * alone : brief), 1};
    step.measured.seconds += launch.seconds - timing;
  }

  for (int again = 0; again < 2; ++again) {  // a second calibration finds the same
    calibrate_steps({step}, machine);
    const std::vector<KernelSample>& samples = machine.kernels.at(long_key).samples();
    CHECK(samples[0].in_step == doctest::Approx(1.3));
    CHECK(samples[1].in_step == doctest::Approx(1.25));  // at most, as it was not run
    CHECK(samples[0].seconds == alone);
    for (const auto& [key, model] : machine.kernels)
      if (key != long_key) CHECK(model.samples()[0].in_step == 1);
    REQUIRE(machine.steps.size() == 1);
    CHECK(machine.steps[0].measured == step.measured.seconds);
  }
  machine = machine_of_json(to_json(machine), "again");
  CHECK(machine.kernels.at(long_key).samples()[0].in_step == doctest::Approx(1.3));
}

TEST_CASE("a plan is predicted for the machine that is named, and only then") {
  const Folder place;
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
  const Folder place;
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
  const Folder place;
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
  const Folder place;
  const CommandResult result =
      place.command({"calibrate", "--name", "own", "--samples", "1", "--most", "2", "--device", "cpu"});
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  CHECK(result.out.find("not measured") == std::string::npos);
  CHECK(place.machine("own")["steps"].size() == 3);
}
