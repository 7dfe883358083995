// Finds the checkpoint that the user means.
#include "cli/commands/checkpoint/find_checkpoint.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>

#include "cli/commands/find_run.h"
#include "cli/run/saves/checkpoints.h"
#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/save_policy.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// Also accepts, by its name, a checkpoint without a checkpoint.json.
bool is_checkpoint(const std::string& path) {
  return is_there(path + "/" + std::string(kManifestName)) || parse_checkpoint_name(fs::path(path).filename().string());
}

/// The folder in which the run saves its checkpoints.
std::string folder_of(const RunDirectory& run) {
  const std::string folder = checkpoint_folder(run);
  if (is_folder(folder)) return folder;
  const TrainSpec train = load_run_job(run.file("job.yaml")).train;
  const std::string name = "run " + std::to_string(run.run());
  if (!train.saves())
    throw SpecError({}, "", name + " has no checkpoints: its job sets train.checkpoint: none",
                    "run it with train.checkpoint=auto");
  throw SpecError(
      {}, "", name + " has no checkpoints yet",
      train.saves_state() ? "send SIGUSR1 to its launcher to save one" : "it saves its weights at the end of the run");
}

/// The best checkpoint of the newest run that has complete ones.
std::string best_of_newest_run(const std::string& log_dir) {
  std::vector<int> runs = list_runs(log_dir);
  std::reverse(runs.begin(), runs.end());
  for (const int number : runs) {
    const RunDirectory run(log_dir, number);
    std::vector<CheckpointEntry> entries;
    std::string metric;
    try {
      metric = metric_of_best(load_run_job(run.file("job.yaml")).train);
      entries = CheckpointDirectory(checkpoint_folder(run)).list();
    } catch (const std::exception&) {  // a run whose job cannot be read any more has nothing to offer here
      continue;
    }
    if (std::ranges::none_of(entries, [](const CheckpointEntry& entry) { return entry.complete(); })) continue;
    if (const std::string best = best_checkpoint(entries, metric); !best.empty()) return best;
    throw SpecError({}, "", "no checkpoint of run " + std::to_string(number) + " has a validation " + metric,
                    "name the run or a checkpoint of it: trainctl checkpoint list " + std::to_string(number));
  }
  throw SpecError({}, "", "no run in " + log_dir + " has a checkpoint", "use --log-dir to select another folder");
}

bool is_run_name(const std::string& name) {
  return name.empty() || name == "latest" || name.find_first_not_of("0123456789") == std::string::npos;
}

std::string newest(const std::string& folder, bool verified) {
  std::vector<std::string> passed_over;
  for (const CheckpointEntry& entry : CheckpointDirectory(folder).list()) {
    std::string problem = entry.problem;
    if (entry.complete() && verified)
      if (const auto problems = verify_and_record(entry.path).problems; !problems.empty()) problem = problems.front();
    if (!problem.empty()) {
      passed_over.push_back(entry.path + " was skipped: " + problem + "\n");
      continue;
    }
    for (const std::string& line : passed_over) std::cerr << line;
    return entry.path;
  }
  for (const std::string& line : passed_over) std::cerr << line;
  throw SpecError({}, "", "no complete checkpoint in " + folder, "trainctl checkpoint list " + folder);
}

}  // namespace

CheckpointPlace find_checkpoints(const std::string& name, const std::string& log_dir) {
  if (is_run_name(name)) return {folder_of(find_run(name, log_dir)), ""};
  const std::string path = without_slash(name);
  if (!is_folder(path) && path == "best") return {"", best_of_newest_run(log_dir)};
  if (!is_folder(path))
    throw SpecError({}, "", "'" + name + "' is neither a folder nor a run number",
                    "trainctl logs lists the runs; best and latest stand for checkpoints of the newest one");
  if (is_checkpoint(path)) return {"", path};
  const bool is_run = is_there(path + "/job.yaml") || is_folder(path + "/checkpoints");
  if (is_run && is_run_name(fs::path(path).filename().string())) return {folder_of(find_run(path, log_dir)), ""};
  return {is_folder(path + "/checkpoints") ? path + "/checkpoints" : path, ""};
}

std::string metric_of_best(const TrainSpec& train) {
  return train.checkpoint && !train.checkpoint->keep_best.empty() ? train.checkpoint->keep_best : "loss";
}

std::string best_checkpoint(const std::vector<CheckpointEntry>& entries, const std::string& metric) {
  const std::optional<int64_t> step = best_step(entries, metric);
  if (!step) return "";
  const auto found =
      std::ranges::find_if(entries, [&](const CheckpointEntry& e) { return e.complete() && e.step == *step; });
  return found == entries.end() ? "" : found->path;
}

std::string find_checkpoint(const std::string& name, const std::string& log_dir, bool verified) {
  const CheckpointPlace place = find_checkpoints(name, log_dir);
  if (place.checkpoint.empty()) return newest(place.folder, verified);
  if (verified)
    if (const auto problems = verify_checkpoint(place.checkpoint).problems; !problems.empty())
      throw EnvError(place.checkpoint + " is damaged: " + problems.front());
  return place.checkpoint;
}

Verification verify_and_record(const std::string& checkpoint) {
  Verification found = verify_checkpoint(checkpoint);
  if (found.problems.empty())
    record_verified(checkpoint);
  else
    forget_verified(checkpoint);
  return found;
}

bool is_safetensors(const std::string& name) { return name.ends_with(".safetensors"); }

void add_log_dir(CLI::App& command, std::string& log_dir) {
  command.add_option("--log-dir", log_dir, "Folder in which run numbers are looked up")->capture_default_str();
}

}  // namespace trainctl
