// Finds the checkpoint that the user means.
#include "cli/commands/checkpoint/find_checkpoint.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "cli/commands/find_run.h"
#include "cli/run/saves/checkpoints.h"
#include "engine/base/error.h"
#include "engine/spec/parse.h"

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
  if (!is_folder(path))
    throw SpecError({}, "", "'" + name + "' is neither a folder nor a run number", "trainctl logs lists the runs");
  if (is_checkpoint(path)) return {"", path};
  const bool is_run = is_there(path + "/job.yaml") || is_folder(path + "/checkpoints");
  if (is_run && is_run_name(fs::path(path).filename().string())) return {folder_of(find_run(path, log_dir)), ""};
  return {is_folder(path + "/checkpoints") ? path + "/checkpoints" : path, ""};
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
