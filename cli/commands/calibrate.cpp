// trainctl calibrate: measures this machine once, so that predictions for plans use its actual speeds.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <set>
#include <thread>

#include "cli/commands/commands.h"
#include "cli/measure/calibration.h"
#include "cli/measure/step_calibration.h"
#include "cli/text/job_templates.h"
#include "cli/text/profile_report.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/estimate/simulate.h"
#include "engine/machine/machine_text.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/machine_file.h"
#include "engine/planning/plan_job.h"
#include "engine/runtime/cuda/devices.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

struct CalibrateArguments {
  std::vector<std::string> jobs;
  std::string name, device = "auto";
  int samples = 15;
  int most = 24;
  bool fresh = false;
};

/// A template, small enough to measure but with every kernel of its layers. On a GPU it has several blocks: a single
/// block next to a large head would run at lower clocks than blocks do in a deep network.
struct Example {
  std::string_view name;
  std::vector<std::string> overrides;
};

const std::vector<Example>& examples(Device device) {
  static const std::vector<Example> cpu = {
      {"mlp", {}},
      {"gpt2",
       {"precision=fp32", "vars.layers=1", "vars.d=128", "vars.heads=4", "vars.length=128", "vars.vocab=256",
        "dataset.classes=256", "dataset.batch=8"}},
      {"gpt2",
       {"precision=fp32", "vars.layers=1", "vars.d=256", "vars.heads=4", "vars.length=128", "vars.vocab=1024",
        "dataset.classes=1024", "dataset.batch=8"}},
  };
  static const std::vector<Example> cuda = {
      {"gpt2", {"vars.layers=4"}},
      {"gpt2", {"vars.layers=4", "vars.d=1024", "vars.heads=16"}},
      {"gpt2", {"vars.layers=4", "vars.d=1600", "vars.heads=25", "dataset.batch=8"}},
      {"llama", {"vars.layers=4"}},
      {"resnet50", {}},
  };
  return device == Device::cuda ? cuda : cpu;
}

Device calibrated_device(const CalibrateArguments& options) {
  if (options.device == "auto") return find_cuda_devices().list.empty() ? Device::cpu : Device::cuda;
  return options.device == "cuda" ? Device::cuda : Device::cpu;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::array<char, 16> text{};
  std::tm parts{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", gmtime_r(&now, &parts));
  return text.data();
}

std::string calibrated_host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "local";
  std::string first = std::string(name.data());
  return first.substr(0, first.find('.'));
}

/// The machine that the measurement extends: the file of an earlier measurement, else the default for this device.
Machine begin(const CalibrateArguments& options, Device device, const std::string& name, const fs::path& file,
              int devices, const std::vector<CudaDevice>& gpus) {
  if (std::ifstream in(file); in && !options.fresh)
    return machine_of_json(std::string{std::istreambuf_iterator<char>(in), {}}, file.string());
  Machine machine = *find_machine(device == Device::cuda ? "h200x8" : "cpu");
  machine.name = name;
  machine.devices = devices;
  if (!gpus.empty()) {
    const auto least = std::min_element(gpus.begin(), gpus.end(), [](const CudaDevice& a, const CudaDevice& b) {
      return a.total_bytes < b.total_bytes;
    });
    machine.memory = {static_cast<double>(least->total_bytes)};
  }
  if (machine.links.size() > 1) machine.links.front().devices = std::max(devices, 1);
  return machine;
}

std::string format_us(Seconds seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f us", seconds.value * 1e6);
  return text.data();
}

std::string format_ms(Seconds seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3f ms", seconds.value * 1e3);
  return text.data();
}

PlannedJob planned(const JobSpec& job, int ranks, int micro_batches = 1) {
  JobSpec spec = job;
  spec.launch.ranks = ranks;
  spec.parallel = {};
  spec.parallel.mode = ranks == 1 ? ParallelMode::stand_alone : ParallelMode::data_parallel;
  spec.parallel.full_batch = true;
  spec.parallel.micro_batches = micro_batches;
  return plan_job(std::move(spec));
}

/// Numbers of micro-batches of the measured one-rank steps: 1 is a single pass; more micro-batches mean smaller
/// kernels that accumulate gradients.
constexpr std::array kMicroBatches = {1, 2, 4};

/// The job on one rank, with its batch divided as ranks and micro-batches divide it, where that is possible.
void add_calls(const JobSpec& job, KernelCalls& calls) {
  require_precision(job);
  const auto add = [&](int ranks, int micro_batches) {
    try {
      calls.add(compile_classes(planned(job, ranks, micro_batches)), ranks == 1);
    } catch (const SpecError&) {
      if (ranks == 1 && micro_batches == 1) throw;  // otherwise the batch is not divisible, or layers need all of it
    }
  };
  for (const int micro_batches : kMicroBatches) add(1, micro_batches);
  for (const int ranks : {2, 4, 8}) add(ranks, 1);
}

std::vector<JobSpec> jobs_of(const CalibrateArguments& options, Device device) {
  std::vector<JobSpec> jobs;
  const std::vector<std::string> on_device = {std::string("launch.device=") +
                                              (device == Device::cuda ? "cuda" : "cpu")};
  for (const std::string& file : options.jobs) jobs.push_back(load_job(file, on_device));
  if (!options.jobs.empty()) return jobs;
  for (const Example& example : examples(device)) {
    const auto& all = job_templates();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const JobTemplate& item) { return item.name == example.name; });
    check(found != all.end(), "calibrate's examples are templates");
    std::vector<std::string> overrides = example.overrides;
    overrides.insert(overrides.end(), on_device.begin(), on_device.end());
    jobs.push_back(parse_job(std::string(found->text), std::string(example.name), overrides));
  }
  return jobs;
}

constexpr int kMostCalibrationRanks = 8;
const std::vector<int64_t> kTransferBytes = {1024, 16384, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

void measure_collectives(const CalibrateArguments& options, Device device, int devices, Machine& machine) {
  std::vector<CollectiveResult> results;
  for (int ranks = 2; ranks <= std::min(devices, kMostCalibrationRanks); ranks *= 2) {
    if (has_collectives(machine, ranks)) continue;
    const std::vector<CollectiveResult> more =
        bench_collectives({.kinds = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                                     Collective::all_to_all, Collective::broadcast},
                           .ranks = ranks,
                           .bytes = kTransferBytes,
                           .device = device,
                           .samples = options.samples});
    results.insert(results.end(), more.begin(), more.end());
  }
  if (!results.empty()) calibrate_links(results, machine);
}

void measure_messages(const CalibrateArguments& options, Device device, Machine& machine) {
  const std::vector<MessageResult> messages = bench_messages(kTransferBytes, device, options.samples);
  calibrate_messages(messages, machine);
  for (const MessageResult& message : messages)
    std::cout << "message of " << format_bytes(message.bytes) << ": " << format_us(message.seconds) << "\n";
  if (!machine.overlaps) return;
  machine.wait_cost = bench_waiting(device, options.samples);
  std::cout << "kernels while waiting for a message: " << machine.wait_cost << " times as long\n";
}

void measure_overlap(const CalibrateArguments& options, Device device, int devices, Machine& machine) {
  const int ranks = static_cast<int>(std::bit_floor(static_cast<unsigned>(std::min(devices, kMostCalibrationRanks))));
  const OverlapResult overlap = bench_overlap(ranks, device, options.samples);
  machine.delays = overlap.delays;
  machine.overlap_cost = overlap.cost;
  std::cout << "collectives in a step: +" << format_us(overlap.delays.exposed) << " between kernels, +"
            << format_us(overlap.delays.beside)
            << " concurrent with kernels; kernels concurrent with collectives: " << overlap.cost << " times as long\n";
}

/// Measures transfer times within a step; needs at least two devices.
void measure_transfers(const CalibrateArguments& options, Device device, int devices, Machine& machine) {
  if (devices < 2) return;
  const auto measure = [](const char* what, const auto& how) {
    try {
      how();
    } catch (const EnvError& error) {
      std::cout << "  " << what << " not measured: " << error.what() << "\n";
    }
  };
  if (!has_messages(machine)) measure("messages", [&] { measure_messages(options, device, machine); });
  if (machine.overlaps && machine.delays == CallDelays{})
    measure("collectives concurrent with kernels", [&] { measure_overlap(options, device, devices, machine); });
}

constexpr std::string_view kMeasured = "measured ";  ///< prefix of Machine::source if its rates were measured

void measure_rates(OpBench& bench, const KernelTimer& timer, Machine& machine) {
  if (machine.source.starts_with(kMeasured)) return bench.set_limits(machine.products, machine.memory_rate);
  const double peak = bench.peak_flops({DType::f32, false});
  machine.memory_rate = {bench.memory_bytes()};
  machine.products.fp32 = {peak};
  if (machine.kind == DeviceKind::cuda) {
    machine.products.tf32 = {bench.peak_flops({DType::f32, true})};
    machine.products.bf16 = {bench.peak_flops({DType::bf16, false})};
  } else {
    machine.products.tf32 = machine.products.bf16 = {peak};
  }
  machine.source = std::string(kMeasured) + today() + ", " + timer.device();
}

struct MeasuredMachine {
  size_t calls = 0;
  std::set<std::string> left_out;
};

void measure_kernels(OpBench& bench, const std::vector<OpRequest>& requests, const fs::path& file, Machine& machine,
                     MeasuredMachine& measured) {
  for (size_t i = 0; i < requests.size(); ++i) {
    try {
      if (!bench.has(requests[i].name())) throw EnvError(requests[i].name() + " has no kernel for this device");
      calibrate_kernel(bench, requests[i], machine);
      ++measured.calls;
    } catch (const SpecError& error) {
      measured.left_out.insert(requests[i].name() + " " + shapes_text(requests[i].inputs));
    } catch (const EnvError& error) {
      measured.left_out.insert(requests[i].name() + " " + shapes_text(requests[i].inputs) + ": " + error.what());
    }
    if (i % 16 == 15) write_machine(machine, file);
    if (isatty(STDERR_FILENO) != 0) std::cerr << "\rkernels: " << i + 1 << " of " << requests.size() << std::flush;
  }
  if (isatty(STDERR_FILENO) != 0) std::cerr << "\r\33[K";
}

/// Trains each job on one rank for a short time.
std::vector<RunStep> run_steps(const std::vector<JobSpec>& jobs, int devices) {
  constexpr Seconds kEach{2};
  const int cores = static_cast<int>(std::thread::hardware_concurrency()), threads = std::max(cores / devices, 1);
  std::vector<RunStep> steps;
  const auto run = [&](const JobSpec& job, int micro_batches) {
    const std::string name =
        micro_batches == 1 ? job.name : job.name + ", " + std::to_string(micro_batches) + " micro-batches";
    try {
      const PlannedJob one = planned(job, 1, micro_batches);
      Program program = compile(one, 0);
      MeasuredStep measured = measure_step(one, program, kEach, threads);
      steps.push_back({name, std::move(program), std::move(measured)});
    } catch (const SpecError&) {
      if (micro_batches == 1) throw;  // otherwise the same as in add_calls
    } catch (const EnvError& error) {
      std::cout << "  step of " << name << " not measured: " << error.what() << "\n";
    }
  };
  for (JobSpec job : jobs) {
    job.train = {.epochs = 0, .steps = 100000};
    job.validation.reset();
    job.print = {};
    for (const int micro_batches : kMicroBatches) run(job, micro_batches);
  }
  return steps;
}

void print_steps(const Machine& machine) {
  const StepCost cost = step_cost(machine.steps);
  for (const StepSample& step : machine.steps)
    std::cout << "step of " << step.job << ": " << format_ms(step.measured) << "; sum of its " << step.kernels
              << " kernels " << format_ms(step.alone) << ", predicted " << format_ms(cost.seconds(step)) << "\n";
}

/// Measures collectives, transfers, rates and kernels of this machine, and writes its file after each part, so that an
/// interrupted calibration resumes.
int calibrate(const CalibrateArguments& options) {
  const Device device = calibrated_device(options);
  const std::string name = options.name.empty() ? calibrated_host_name() : options.name;
  const fs::path file = machine_file(name);
  const std::vector<JobSpec> jobs = jobs_of(options, device);
  KernelCalls calls;
  for (const JobSpec& job : jobs) add_calls(job, calls);
  const std::vector<CudaDevice> gpus = device == Device::cuda ? find_cuda_devices().list : std::vector<CudaDevice>();
  const int devices =
      device == Device::cuda ? static_cast<int>(gpus.size()) : static_cast<int>(std::thread::hardware_concurrency());
  Machine machine = begin(options, device, name, file, devices, gpus);
  // Both fork, so they run before this process has threads.
  measure_collectives(options, device, devices, machine);
  measure_transfers(options, device, devices, machine);
  write_machine(machine, file);
  std::unique_ptr<KernelTimer> timer = device == Device::cuda ? make_cuda_kernel_timer() : make_cpu_kernel_timer(1);
  OpBench bench(*timer, {.samples = options.samples});
  measure_rates(bench, *timer, machine);
  // The jobs' own kernels and steps come first: they suffice for predictions, which other sizes refine.
  MeasuredMachine measured;
  measure_kernels(bench, calls.to_measure(machine, 0), file, machine, measured);
  const std::vector<RunStep> steps = run_steps(jobs, devices);
  calibrate_steps(steps, machine);
  write_machine(machine, file);
  measure_kernels(bench, calls.to_measure(machine, static_cast<size_t>(options.most)), file, machine, measured);
  calibrate_steps(steps, machine);
  print_steps(machine);
  write_machine(machine, file);
  std::cout << "kernels: " << measured.calls << " calls measured\n";
  for (const std::string& text : measured.left_out) std::cout << "  not measured: " << text << "\n";
  std::cout << "machine " << name << ": " << machine.source << "\n  in " << file.string()
            << "\n  next: trainctl plan job.yaml launch.machine=" << name << "\n";
  return kExitDone;
}

}  // namespace

void add_calibrate_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<CalibrateArguments>();
  auto* command = app.add_subcommand("calibrate", "Measure this machine, so that plan can predict step times");
  command->add_option("JOB.yaml", options->jobs, "Jobs whose kernels are measured; default: the templates");
  command->add_option("--name", options->name, "Name of the machine; default: the host name");
  command->add_option("--device", options->device, "auto | cpu | cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--samples", options->samples, "Samples per call; the median is used")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--most", options->most, "Largest number of sizes measured per kernel")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  command->add_flag("--fresh", options->fresh, "Discard the results of earlier calibrations");
  command->footer(
      R"(Measures each distinct kernel call of the jobs once, and collectives between the devices of this host. Results
of an earlier calibration with the same name are kept: an interrupted calibration resumes, and further jobs add their
kernels.

Examples:
  trainctl calibrate
  trainctl calibrate job.yaml --name lab
  trainctl plan job.yaml launch.machine=lab)");
  command->callback([&chosen, options] { chosen = [options] { return calibrate(*options); }; });
}

}  // namespace trainctl
