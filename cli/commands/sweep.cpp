// trainctl sweep: runs a job with many values of some fields, several runs at a time.
#include "cli/sweep/sweep.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/errors.h"
#include "cli/render/terminal.h"
#include "cli/report/page.h"
#include "cli/report/run_data.h"
#include "cli/run/launch/device_choice.h"
#include "cli/sweep/lr_range.h"
#include "cli/sweep/results.h"
#include "cli/sweep/swept_field.h"
#include "cli/sweep/tpe.h"
#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "engine/base/text.h"
#include "engine/runtime/cuda/devices.h"
#include "engine/spec/parse.h"
#include "launcher/topology.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kReported = 10;

struct SweepArguments {
  std::string job;
  std::vector<std::string> fields;
  int64_t random = 0;       ///< trials; 0: a grid
  int64_t tpe = 0;          ///< trials that are chosen from the results of earlier ones; 0: none
  int64_t asha = 0;         ///< steps of the first rung of successive halving; 0: all trials run to their end
  int64_t asha_factor = 4;  ///< between two rungs
  uint64_t seed = 1;
  int jobs = 0;  ///< at once; 0: as many as fit
  std::string folder;
  std::string by;
  std::string lr_range;  ///< "1e-6..10"; empty: an ordinary sweep
  int64_t lr_steps = 100;
};

/// Reads the jobs of all trials before any is started. Returns the first.
JobSpec check_trials(const SweepArguments& options, const std::vector<TrialFields>& trials) {
  std::optional<JobSpec> first;
  for (const TrialFields& trial : trials) {
    JobSpec spec = load_job(options.job, trial);
    if (first && spec.processes() != first->processes())
      throw SpecError({}, "launch.ranks", "all trials of a sweep must have the same number of ranks",
                      "run one sweep per number of ranks");
    if (!first) first = std::move(spec);
  }
  return std::move(*first);
}

/// Number of trials that fit on the machine at once. `gpus`: number of GPUs available to them; 0: none.
int most_at_once(const JobSpec& spec, int gpus) {
  const int places = gpus > 0 ? gpus : static_cast<int>(read_topology().cpus.size());
  return std::max(1, places / std::max(1, spec.processes()));
}

/// Indices of the GPUs that the trials may use; none if they run on CPUs.
std::vector<int> gpus_for(const JobSpec& spec) {
  std::vector<int> numbers;
  if (spec.has_command() || spec.launch.device == Device::cpu) return numbers;
  const CudaDevices found = find_cuda_devices();
  if (resolve_device(spec, found) == Device::cpu) return numbers;
  for (const CudaDevice& device : found.list) numbers.push_back(device.index);
  return numbers;
}

/// Describes the sweep that the options request, without the number of random trials, which may grow.
Json request_of(const SweepArguments& options) {
  Json request = {{"job", fs::absolute(options.job).lexically_normal().string()}, {"fields", options.fields}};
  if (options.random > 0 || options.tpe > 0) request["seed"] = options.seed;
  if (options.tpe > 0) request["search"] = "tpe";
  if (options.asha > 0) request["asha"] = {options.asha, options.asha_factor};
  request["yaml"] = to_yaml(load_job(options.job));
  return request;
}

/// Throws if the folder belongs to another sweep.
void claim_folder(const Sweep& sweep, const Json& request) {
  const std::string path = sweep.folder + "/sweep.json";
  fs::create_directories(sweep.folder);
  if (std::ifstream known(path); known) {
    if (Json::parse(known, nullptr, false) != request)
      throw SpecError({}, "--folder", sweep.folder + " contains a different sweep, or the job file has changed since",
                      "choose another folder, or delete this one");
    return;
  }
  write_output(path, request.dump(2) + "\n", FileReaders::owner);  // it contains the values of env
}

/// The metric by which --asha compares trials while they run. Throws SpecError if the job does not report it.
std::string halved_by(const SweepArguments& options, const JobSpec& spec) {
  std::vector<std::string> names;
  for (const std::string& name : spec.reported_metrics()) names.push_back("validation " + name);
  for (const std::string& name : spec.reported_metrics()) names.push_back("best validation " + name);
  if (spec.loss) names.emplace_back("loss");
  for (const std::string& name : spec.metric_names()) names.push_back(name);
  if (names.empty())
    throw SpecError({}, "--asha", "the job reports no loss and no metric to compare trials by", "remove --asha");
  if (options.by.empty()) return names.front();
  if (std::find(names.begin(), names.end(), options.by) == names.end())
    throw SpecError({}, "--by", "the job reports no '" + options.by + "' while it runs", "available: " + join(names));
  return options.by;
}

Sweep sweep_of(const SweepArguments& options, std::vector<TrialFields> trials, const JobSpec& spec) {
  Sweep sweep{.job = options.job, .trials = std::move(trials), .ranks = spec.processes(), .gpus = gpus_for(spec)};
  sweep.folder = fs::absolute(options.folder.empty() ? "sweep_output/" + spec.name : options.folder).lexically_normal();
  const int gpus = static_cast<int>(sweep.gpus.size()), most = most_at_once(spec, gpus);
  if (gpus > 0 && options.jobs > most)
    throw SpecError({}, "--jobs",
                    fmt::format("{} of {} need {}, but this host has {}", plural(options.jobs, "trial"),
                                plural(sweep.ranks, "rank"), plural(options.jobs * sweep.ranks, "GPU"), gpus),
                    fmt::format("--jobs {}", most));
  if (options.asha > 0) sweep.halving = Halving{options.asha, options.asha_factor, halved_by(options, spec)};
  sweep.at_once = options.jobs > 0 ? options.jobs : std::min<int>(most, static_cast<int>(sweep.trials.size()));
  return sweep;
}

/// Writes a report of the best trials that have a run, and returns its path; "": no trial has a run.
std::string write_report(const Sweep& sweep, const std::vector<TrialResult>& results) {
  std::vector<Json> runs;
  for (const TrialResult& result : results) {
    const std::vector<int> numbers = list_runs(sweep.log_dir(result.trial));
    if (numbers.empty() || runs.size() == kReported) continue;
    runs.push_back(run_data({sweep.log_dir(result.trial), numbers.back()}));
    runs.back()["label"] = "trial " + std::to_string(result.trial + 1);
  }
  if (runs.empty()) return "";
  const std::string path = sweep.folder + "/report.html";
  write_page(path, page_data(std::move(runs), std::string(report_version())));
  return path;
}

/// Runs the range test of the learning rate, and draws it.
int find_learning_rate(SweepArguments options) {
  TrialFields fields = options.fields;
  for (const std::string& word : fields)
    if (parse_swept_field(word).values.size() != 1)
      throw SpecError({}, word, "a learning-rate range test cannot vary other fields",
                      "give the field one value, or remove --lr-range");
  const LrRange range = parse_lr_range(options.lr_range, options.lr_steps);
  for (const std::string& field : lr_range_fields(range)) fields.push_back(field);
  const JobSpec spec = check_trials(options, {fields});
  if (!spec.loss) throw SpecError(spec.position("loss"), "loss", "the job has no loss to plot", "add loss: ...");
  options.fields = fields;
  if (options.folder.empty()) options.folder = "sweep_output/" + spec.name + ".lr_range";
  const Sweep sweep = sweep_of(options, {fields}, spec);
  claim_folder(sweep, request_of(options));
  std::cout << fmt::format("{} with learning rates from {:g} to {:g}, in {}\n", plural(range.steps, "step"), range.low,
                           range.high, sweep.folder)
            << std::flush;
  PosixProcessRunner runner;
  const SweepEnd end = run_trials(sweep, spec, runner, [](const std::string&) {});
  if (end.signal != 0) return 128 + end.signal;
  const std::vector<int> runs = list_runs(sweep.log_dir(0));
  if (runs.empty() || state_of(sweep, 0) != TrialState::done) {
    std::cerr << "the run failed; see " << sweep.log_dir(0) << "/output\n";
    return kExitRankFailed;
  }
  const LrCurve curve = read_lr_curve(RunDirectory(sweep.log_dir(0), runs.back()).file("metrics.jsonl"));
  std::cout << "\n" << lr_curve_text(curve, output_width(STDOUT_FILENO));
  if (curve.steepest)
    std::cout << fmt::format("next: trainctl run {} optimizer.learning_rate={:.2g}\n", options.job, *curve.steepest);
  return kExitDone;
}

/// Runs trials in rounds; the trials of a round run at the same time. The results of all earlier rounds determine the
/// next one. The fields of a trial are kept in its folder, so that the same command resumes the sweep.
SweepEnd run_chosen_trials(Sweep& sweep, const SweepArguments& options, const std::vector<SweptField>& fields,
                           const JobSpec& spec, const std::function<void(const std::string&)>& report) {
  PosixProcessRunner runner;
  SweepEnd end;
  sweep.trials.clear();
  while (sweep.trials.size() < static_cast<size_t>(options.tpe) && end.signal == 0) {
    std::vector<Observation> ended;
    if (!sweep.trials.empty()) ended = observations_of(sweep, options.by);
    for (int slot = 0; slot < sweep.at_once && sweep.trials.size() < static_cast<size_t>(options.tpe); ++slot) {
      const size_t number = sweep.trials.size();
      const std::string path = sweep.log_dir(number) + "/fields.json";
      const Json known = Json::parse(std::ifstream(path), nullptr, false);
      if (known.is_array()) {
        sweep.trials.push_back(known.get<TrialFields>());
        continue;
      }
      sweep.trials.push_back(choose_trial(fields, ended, options.seed, number));
      (void)load_job(options.job, sweep.trials.back());
      fs::create_directories(sweep.log_dir(number));
      write_output(path, Json(sweep.trials.back()).dump() + "\n");
    }
    const SweepEnd round = run_trials(sweep, spec, runner, report);
    end.failed += round.failed;
    end.signal = round.signal;
  }
  return end;
}

/// Runs the trials: every combination of the values, random ones, or ones that earlier results suggest.
int sweep(const SweepArguments& options) {
  if (!options.lr_range.empty()) return find_learning_rate(options);
  if (options.fields.empty())
    throw SpecError({}, "field=values", "is missing: name a field to vary",
                    "e.g. optimizer.learning_rate=1e-3,3e-3, or --lr-range 1e-6..10");
  std::vector<SweptField> fields;
  for (const std::string& word : options.fields) fields.push_back(parse_swept_field(word));
  std::vector<TrialFields> trials = options.tpe > 0      ? random_trials(fields, options.tpe, options.seed)
                                    : options.random > 0 ? random_trials(fields, options.random, options.seed)
                                                         : grid(fields);
  const JobSpec spec = check_trials(options, trials);
  print_warnings(spec);
  Sweep sweep = sweep_of(options, std::move(trials), spec);
  claim_folder(sweep, request_of(options));
  std::cout << fmt::format("{} trials of {}, {} at a time, in {}\n", sweep.trials.size(), spec.name, sweep.at_once,
                           sweep.folder)
            << std::flush;
  PosixProcessRunner runner;
  const auto report = [](const std::string& line) { std::cout << line << std::endl; };
  const SweepEnd end = options.tpe > 0 ? run_chosen_trials(sweep, options, fields, spec, report)
                                       : run_trials(sweep, spec, runner, report);
  const std::vector<TrialResult> results = results_of(sweep, options.by);
  std::cout << "\n" << results_table(sweep, results);
  if (const std::string page = write_report(sweep, results); !page.empty()) std::cout << "\n" << page << "\n";
  if (end.signal != 0) {
    std::cout << "stopped; run the same command to resume the sweep\n";
    return 128 + end.signal;
  }
  const bool failed = end.failed > 0 || std::any_of(results.begin(), results.end(), [](const TrialResult& result) {
                        return result.state == TrialState::failed;
                      });
  return failed ? kExitRankFailed : kExitDone;
}

constexpr const char* kSweepFooter =
    R"(Prints a table of the trials, best first, and writes a report of the best ten. Ctrl-C stops the active trials at the end
of a step; the same command then resumes the unfinished trials, from their checkpoints if the job saves them. Failed
trials are not repeated.

Examples:
  trainctl sweep job.yaml optimizer.learning_rate=1e-3,3e-3 'vars.d=64..512*2' --jobs 2
  trainctl sweep job.yaml 'optimizer.learning_rate=1e-4..1e-1*' dataset.batch=32,64 --random 20 --seed 7
  trainctl sweep job.yaml 'optimizer.learning_rate=1e-4..1e-1*' 'network.fc.units=16..256*' --tpe 40
  trainctl sweep job.yaml 'optimizer.learning_rate=1e-4..1e-1*' --random 64 --asha 100
  trainctl sweep job.yaml --lr-range 1e-6..10
  trainctl sweep job.yaml seed=1..5+1 --by 'validation accuracy')";

/// The options that choose the values of trials, and those that end trials early.
void add_search_options(CLI::App& command, SweepArguments& options) {
  command.add_option("--random", options.random, "Run this many trials with random values instead of all combinations")
      ->check(CLI::Range(1, 10'000))
      ->option_text("N");
  command
      .add_option("--tpe", options.tpe,
                  "Run this many trials whose values are chosen from the results of earlier ones, after 10 random ones")
      ->check(CLI::Range(1, 10'000))
      ->option_text("N")
      ->excludes("--random");
  command
      .add_option("--asha", options.asha,
                  "End trials that are not among the best 1/F at STEPS, F*STEPS, F*F*STEPS, ... steps (successive "
                  "halving)")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
      ->option_text("STEPS");
  command.add_option("--asha-factor", options.asha_factor, "The factor F of --asha")
      ->check(CLI::Range(int64_t{2}, int64_t{100}))
      ->capture_default_str();
}

}  // namespace

void add_sweep_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<SweepArguments>();
  auto* command = app.add_subcommand("sweep", "Run a job with many values of some fields, and compare the results");
  command->add_option("JOB.yaml", options->job, "Job file")->required()->check(CLI::ExistingFile);
  command->add_option(
      "field=values", options->fields,
      "Fields to vary: a=1,2,3 or 'a=64..512*2' or a=0..1+0.25; with --random also a=1..9 and 'a=1e-4..1e-1*'");
  add_search_options(*command, *options);
  command->add_option("--seed", options->seed, "Seed for --random and --tpe; the same seed draws the same values")
      ->capture_default_str();
  command
      ->add_option("--jobs", options->jobs, "Number of concurrent trials; default: as many as the cores or GPUs allow")
      ->check(CLI::Range(1, 256))
      ->option_text("N");
  command
      ->add_option("--lr-range", options->lr_range,
                   "Find a learning rate: one short run whose rate grows from LOW to HIGH, with a plot of the loss")
      ->option_text("LOW..HIGH");
  command->add_option("--lr-steps", options->lr_steps, "Steps of --lr-range")
      ->check(CLI::Range(int64_t{10}, int64_t{100'000}))
      ->capture_default_str();
  command->add_option("--folder", options->folder, "Folder of the runs; default: sweep_output/<name of the job>");
  command->add_option("--by", options->by,
                      "Metric that ranks the trials, e.g. accuracy or 'validation accuracy'; default: validation loss "
                      "if there is one, else loss");
  command->footer(kSweepFooter);
  command->callback([&chosen, options] { chosen = [options] { return sweep(*options); }; });
}

}  // namespace trainctl
