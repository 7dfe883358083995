// Measures the times of kernels within a step, which differ from those of kernels that run alone.
#include "cli/measure/step_calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "cli/measure/calibration.h"
#include "engine/estimate/simulate.h"

namespace trainctl {
namespace {

constexpr Seconds kLong{20e-6};

/// Ratios of the time that a call takes in a step to its time when it runs alone, one per execution.
struct Ratios {
  KernelSample call;
  std::vector<double> logs;

  double mean() const {
    return std::exp(std::accumulate(logs.begin(), logs.end(), 0.0) / static_cast<double>(logs.size()));
  }
};
using RatiosOfKey = std::map<std::string, std::vector<Ratios>>;

/// The sample of exactly this call; null: it was not measured.
const KernelSample* sample_of(const Machine& machine, const Instruction& instruction, std::string& key) {
  if (instruction.opcode != Opcode::kernel) return nullptr;
  MeasuredCall call = call_of(instruction);
  key = std::move(call.key);
  const auto model = machine.kernels.find(key);
  if (model == machine.kernels.end()) return nullptr;
  for (const KernelSample& sample : model->second.samples())
    if (distance(sample, call.sample) == 0) return &sample;
  return nullptr;
}

/// The time that timing adds to an instruction, estimated from short kernels.
Seconds timing_cost(const RunStep& step, const Machine& machine) {
  constexpr Seconds kMost{5e-6};
  std::vector<Seconds> beyond;
  std::string key;
  for (size_t i = 0; i < step.measured.launches.size(); ++i) {
    const MeasuredStep::Launch& launch = step.measured.launches[i];
    if (launch.instructions != 1) continue;
    const KernelSample* alone = sample_of(machine, step.program.instructions[i], key);
    if (alone != nullptr && alone->seconds < kLong) beyond.push_back(launch.seconds - alone->seconds);
  }
  if (beyond.empty()) return {};
  const auto middle = beyond.begin() + static_cast<long>(beyond.size() / 2);
  std::nth_element(beyond.begin(), middle, beyond.end());
  return std::clamp(*middle, Seconds{}, kMost);
}

/// The kernels of a launch; empty if one of them was not measured separately.
struct Launched {
  std::vector<std::pair<std::string, const KernelSample*>> calls;  ///< with their keys
  Seconds alone;                                                   ///< one after the other, but with one start
};

Launched launched(const RunStep& step, size_t first, int count, const Machine& machine) {
  Launched launched;
  for (size_t i = first; i < first + static_cast<size_t>(count); ++i) {
    std::string key;
    const KernelSample* call = sample_of(machine, step.program.instructions[i], key);
    if (call == nullptr) return {};
    launched.alone += launched.calls.empty() ? call->seconds : std::max(call->seconds - machine.launch, Seconds{});
    launched.calls.emplace_back(std::move(key), call);
  }
  return launched;
}

void add_ratios(const RunStep& step, const Machine& machine, RatiosOfKey& ratios) {
  const Seconds cost = timing_cost(step, machine);
  Seconds sum;
  for (const MeasuredStep::Launch& launch : step.measured.launches)
    if (launch.instructions > 0) sum += std::max(launch.seconds - cost, Seconds{});
  if (sum == Seconds{}) return;
  // Timed steps differ from those of a long run: the device is idle before each, and timing itself has a cost. A run
  // whose steps take longer than their kernels also waits for its host.
  const double as_in_run = std::clamp(step.measured.seconds / sum, 0.85, 1.05);
  for (size_t i = 0; i < step.measured.launches.size(); ++i) {
    const MeasuredStep::Launch& launch = step.measured.launches[i];
    const Launched kernels = launched(step, i, launch.instructions, machine);
    if (kernels.alone < kLong || launch.seconds <= cost) continue;
    const double log = std::log(as_in_run * ((launch.seconds - cost) / kernels.alone));
    for (const auto& [key, call] : kernels.calls) {
      std::vector<Ratios>& of_key = ratios[key];
      auto known = std::find_if(of_key.begin(), of_key.end(),
                                [call = call](const Ratios& ratio) { return distance(ratio.call, *call) == 0; });
      if (known == of_key.end()) known = of_key.insert(of_key.end(), {*call, {}});
      known->logs.push_back(log);
    }
  }
}

double in_step(const KernelSample& sample, const std::vector<Ratios>& of_key) {
  constexpr double kMost = 1.25;  // largest factor applied to calls that were not run
  double nearest = INFINITY, sum = 0, count = 0;
  for (const Ratios& ratios : of_key) nearest = std::min(nearest, distance(ratios.call, sample));
  for (const Ratios& ratios : of_key) {
    if (distance(ratios.call, sample) > nearest + 1e-6) continue;
    sum += std::log(ratios.mean());
    ++count;
  }
  const double mean = std::exp(sum / count);
  if (nearest == 0) return mean;
  return sample.seconds < kLong ? 1 : std::clamp(mean, 1 / kMost, kMost);
}

}  // namespace

void calibrate_steps(const std::vector<RunStep>& steps, Machine& machine) {
  RatiosOfKey ratios;
  for (const RunStep& step : steps) add_ratios(step, machine, ratios);
  for (auto& [key, model] : machine.kernels) {
    std::vector<KernelSample> samples = model.samples();
    const auto of_key = ratios.find(key);
    for (KernelSample& sample : samples) sample.in_step = of_key == ratios.end() ? 1 : in_step(sample, of_key->second);
    model = KernelModel(std::move(samples));
  }
  machine.steps.clear();
  for (const RunStep& step : steps) {
    StepSample sample = step_alone(step.program, machine);
    sample.job = step.job;
    sample.measured = step.measured.seconds;
    machine.steps.push_back(std::move(sample));
  }
}

}  // namespace trainctl
