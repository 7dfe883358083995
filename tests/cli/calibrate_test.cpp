// trainctl calibrate and the predictions of trainctl plan.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/measure/calibration.h"
#include "cli/measure/step_calibration.h"
#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/machine/machine_text.h"
#include "engine/planning/compile_job.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

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
  nlohmann::json plan(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"plan", "job.yaml", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = command(words);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return nlohmann::json::parse(result.out);
  }
  nlohmann::json machine(const std::string& name) const {
    return nlohmann::json::parse(std::ifstream(scratch.path() + "/trainctl/machines/" + name + ".json"));
  }

  Scratch scratch;
};

}  // namespace

TEST_CASE("calibrate measures the job's kernels once each, keeps what it has, and plans are predicted from it") {
  const Folder place;
  const CommandResult first =
      place.command({"calibrate", "job.yaml", "--name", "lab", "--samples", "2", "--device", "cpu"});
  REQUIRE_MESSAGE(first.exit_code == 0, first.err);
  const nlohmann::json machine = place.machine("lab");
  CHECK(machine["name"] == "lab");
  CHECK(machine["source"].get<std::string>().starts_with("measured 2"));
  REQUIRE(machine["kernels"].contains("matmul f32 f32 f32 -> f32"));
  size_t calls = 0;
  for (const auto& [key, samples] : machine["kernels"].items()) {
    calls += samples.size();
    for (const nlohmann::json& sample : samples) CHECK(sample["seconds"].get<double>() > 0);
  }
  if (std::thread::hardware_concurrency() >= 2) {
    CHECK(machine["calls"].contains("all_reduce 2"));
    CHECK(machine["calls"]["message 2"].size() == machine["calls"]["all_reduce 2"].size());
  }
  CHECK(first.out.find("kernels: " + std::to_string(calls) + " calls measured") != std::string::npos);

  REQUIRE(machine["steps"].size() == 3);  // with the batch whole, and in 2 and 4 micro-batches
  for (const nlohmann::json& step : machine["steps"]) {
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

  const nlohmann::json estimate = place.plan({"launch.machine=lab"})["estimate"];
  CHECK(estimate["machine"] == "lab");
  CHECK(estimate["low"].get<double>() < estimate["seconds"].get<double>());
  CHECK(estimate["high"].get<double>() > estimate["seconds"].get<double>());
  double parts = 0;
  for (const auto& [name, seconds] : estimate["parts"].items()) parts += seconds.get<double>();
  CHECK(parts == doctest::Approx(estimate["seconds"].get<double>()));
}

namespace {

/// A step of one rank of the job, and a machine with a sample of each of its calls and one 64 times as large of each
/// key.
struct RunHere {
  explicit RunHere(const std::function<Seconds(const KernelDef&)>& alone) {
    const PlannedJob planned = plan_job(parse_job(kJob, "job", {"launch.ranks=1", "parallel.mode=stand_alone"}));
    step = {"job", compile(planned, 0), {}};
    step.measured.launches.resize(step.program.instructions.size());
    machine.launch = {};
    for (size_t i = 0; i < step.program.instructions.size(); ++i) {
      const Instruction& now = step.program.instructions[i];
      if (now.opcode != Opcode::kernel) continue;
      auto [key, sample] = call_of(now);
      sample.seconds = alone(*kernel_of(now));
      std::vector<KernelSample> samples;
      if (const auto known = machine.kernels.find(key); known != machine.kernels.end())
        samples = known->second.samples();
      samples.push_back(std::move(sample));
      kernels.push_back({i, key, samples.size() - 1, samples.back().seconds});
      machine.kernels.insert_or_assign(key, KernelModel(std::move(samples)));
    }
    for (auto& [key, model] : machine.kernels) {
      std::vector<KernelSample> samples = model.samples();
      KernelSample larger = samples.back();
      larger.cost = {.flops = 64 * larger.cost.flops, .bytes = 64 * larger.cost.bytes};
      for (double& size : larger.sizes) size += 6;
      larger.seconds = 64 * larger.seconds;
      samples.push_back(std::move(larger));
      model = KernelModel(std::move(samples));
    }
  }
  double in_step(size_t kernel) const {
    return machine.kernels.at(kernels[kernel].key).samples()[kernels[kernel].at].in_step;
  }

  struct Kernel {
    size_t instruction;
    std::string key;
    size_t at;  ///< index among the samples of its key
    Seconds alone;
  };
  RunStep step;
  Machine machine = *find_machine("cpu");
  std::vector<Kernel> kernels;
};

}  // namespace

TEST_CASE(
    "a long kernel is priced as in measured steps, other sizes like the nearest one, and a short kernel as when timed "
    "alone") {
  const Seconds timing{3e-6};
  RunHere run([](const KernelDef& kernel) { return Seconds{kernel.is_product ? 100e-6 : 0.3e-6}; });
  for (const RunHere::Kernel& kernel : run.kernels) {
    const double times = kernel.alone.value > 50e-6 ? 1.3 : 1;
    run.step.measured.launches[kernel.instruction] = {timing + times * kernel.alone, 1};
    run.step.measured.seconds += times * kernel.alone;
  }
  for (int again = 0; again < 2; ++again) {  // a second calibration finds the same
    calibrate_steps({run.step}, run.machine);
    for (size_t k = 0; k < run.kernels.size(); ++k) {
      const bool is_long = run.kernels[k].alone.value > 50e-6;
      CHECK(run.in_step(k) == doctest::Approx(is_long ? 1.3 : 1));
      const std::vector<KernelSample>& samples = run.machine.kernels.at(run.kernels[k].key).samples();
      CHECK(samples.back().in_step == doctest::Approx(is_long ? 1.25 : 1));  // not run: at most that
      CHECK(samples[run.kernels[k].at].seconds == run.kernels[k].alone);
    }
    REQUIRE(run.machine.steps.size() == 1);
    CHECK(run.machine.steps[0].measured == run.step.measured.seconds);
    CHECK(run.machine.steps[0].alone.value == doctest::Approx(run.step.measured.seconds.value).epsilon(1e-3));
  }
  CHECK(machine_of_json(to_json(run.machine), "again") == run.machine);
}

TEST_CASE("kernels that one launch runs are priced by the time of the launch in a step") {
  RunHere run([](const KernelDef&) { return Seconds{15e-6}; });
  size_t pair = 0;
  while (run.kernels[pair + 1].instruction != run.kernels[pair].instruction + 1) ++pair;
  for (size_t k = 0; k < run.kernels.size(); ++k) {
    if (k == pair + 1) continue;
    MeasuredStep::Launch& launch = run.step.measured.launches[run.kernels[k].instruction];
    launch = {k == pair ? Seconds{18e-6} : run.kernels[k].alone, k == pair ? 2 : 1};
    run.step.measured.seconds += launch.seconds;
  }
  calibrate_steps({run.step}, run.machine);
  for (size_t k = 0; k < run.kernels.size(); ++k)
    CHECK(run.in_step(k) == doctest::Approx(k == pair || k == pair + 1 ? 0.6 : 1));
}

TEST_CASE("a plan is predicted for the machine that is named, and only then") {
  const Folder place;
  CHECK(!place.plan({}).contains("estimate"));
  const double slow = place.plan({"launch.machine=cpu", "dataset.batch=65536"})["estimate"]["seconds"];
  const double fast = place.plan({"launch.machine=h200x8", "dataset.batch=65536"})["estimate"]["seconds"];
  CHECK(fast < slow);
  CHECK(!place.plan({"launch.machine=cpu"})["estimate"].contains("memory"));
  const nlohmann::json memory = place.plan({"launch.machine=h200x8"})["estimate"]["memory"];
  CHECK(memory["fits"] == true);
  CHECK(memory["bytes"] == place.plan({"launch.machine=h200x8"})["rank_classes"][0]["memory"]["total"]);
  const std::vector<std::string> huge = {"plan", "job.yaml", "launch.machine=a100x8", "dataset.batch=536870912",
                                         "dataset.shuffle=false"};
  const CommandResult refused = place.command(huge);
  CHECK(refused.exit_code == kExitSpec);
  CHECK(refused.out.find("does not fit this machine: rank 0 needs ") != std::string::npos);
  CHECK(refused.err.find("launch.machine: rank 0 needs ") != std::string::npos);
  CHECK(refused.err.find("parallel.micro_batches: 2 (") != std::string::npos);
  const CommandResult checked = place.command({"check", "job.yaml", "launch.machine=a100x8", "dataset.batch=536870912"});
  CHECK(checked.exit_code == kExitSpec);
  CHECK(checked.err.find("launch.machine: rank 0 needs ") != std::string::npos);
  const CommandResult text = place.command({"plan", "job.yaml", "launch.machine=h100x8"});
  CHECK(text.out.find("predicted step time on h100x8 (data sheets): ") != std::string::npos);
}

TEST_CASE("an unknown machine is an error that lists the known ones") {
  const Folder place;
  const CommandResult result = place.command({"plan", "job.yaml", "launch.machine=h300x8"});
  CHECK(result.exit_code == 2);
  CHECK(result.err.find("launch.machine: unknown machine 'h300x8'") != std::string::npos);
  CHECK(result.err.find("h200x8") != std::string::npos);
  std::ofstream(place.scratch.path() + "/odd.json") << "{}";
  const CommandResult odd = place.command({"plan", "job.yaml", "launch.machine=./odd.json"});
  CHECK(odd.exit_code == 3);
  CHECK(odd.err.find("odd.json has no field 'name'") != std::string::npos);
}

TEST_CASE("the predicted step is written as a trace, an event an instruction") {
  const Folder place;
  const nlohmann::json report = place.plan({"--timeline", "step.json"});
  CHECK(report["estimate"]["machine"] == "cpu");
  const nlohmann::json trace = nlohmann::json::parse(std::ifstream(place.scratch.path() + "/step.json"));
  size_t events = 0;
  double end = 0;
  for (const nlohmann::json& event : trace["traceEvents"]) {
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
  CHECK(place.machine("own")["steps"].size() == 9);  // of three examples, in three micro-batch counts
}
