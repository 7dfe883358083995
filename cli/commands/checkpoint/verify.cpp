// trainctl checkpoint verify: checks that every byte is as it was written.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/checkpoint/checkpoint_commands.h"
#include "cli/commands/checkpoint/find_checkpoint.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"
#include "engine/train/checkpoint/verify_checkpoint.h"

namespace trainctl {
namespace {

struct CheckpointVerifyArguments {
  std::vector<std::string> what;
  std::string log_dir = LaunchSpec{}.log_dir;
  bool json = false;
};

void print(const std::string& path, const Verification& found, bool json) {
  if (json) {
    const nlohmann::ordered_json line = {
        {"path", path}, {"files", found.files}, {"bytes", found.bytes}, {"problems", found.problems}};
    std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
    return;
  }
  if (found.problems.empty()) {
    std::cout << fmt::format("{}: intact, {} files, {}", path, found.files, format_bytes(found.bytes)) << std::endl;
    return;
  }
  std::cout << path << ": damaged\n";
  for (const std::string& problem : found.problems) std::cout << "  " << problem << "\n";
  std::cout.flush();
}

/// The checkpoints that `word` names: one, or all published ones of a folder, oldest first.
std::vector<std::string> named_by(const std::string& word, const std::string& log_dir) {
  const CheckpointPlace place = find_checkpoints(word, log_dir);
  if (place.folder.empty()) return {place.checkpoint};
  std::vector<std::string> paths;
  for (const CheckpointEntry& entry : CheckpointDirectory(place.folder).list())
    if (!entry.unfinished) paths.push_back(entry.path);
  if (paths.empty()) throw SpecError({}, "", "no checkpoints in " + place.folder);
  std::reverse(paths.begin(), paths.end());
  return paths;
}

int verify(const CheckpointVerifyArguments& options) {
  std::vector<std::string> paths;
  for (const std::string& word : options.what.empty() ? std::vector<std::string>{"latest"} : options.what)
    for (std::string& path : named_by(word, options.log_dir)) paths.push_back(std::move(path));
  int damaged = 0;
  for (const std::string& path : paths) {
    const Verification found = verify_and_record(path);
    print(path, found, options.json);
    damaged += found.problems.empty() ? 0 : 1;
  }
  if (damaged == 0) return kExitDone;
  if (!options.json) std::cout << fmt::format("{} of {} checkpoints damaged\n", damaged, paths.size());
  return kExitEnv;
}

}  // namespace

void add_checkpoint_verify(CLI::App& checkpoint, Action& chosen) {
  auto options = std::make_shared<CheckpointVerifyArguments>();
  auto* command = checkpoint.add_subcommand("verify", "Check every byte of checkpoints; exit 3 if any is damaged");
  command->add_option("CHECKPOINT", options->what,
                      "Folders of checkpoints; for a run or a folder of several, all are checked; default: latest");
  command->add_flag("--json", options->json, "Print one JSON object per checkpoint: path, files, bytes, problems");
  add_log_dir(*command, options->log_dir);
  command->footer(
      R"(Checks the size and XXH128 of all files, the headers of the safetensors files, and that the pieces of each tensor cover it
exactly once. An intact checkpoint is marked in its folder (.verified); the newest one is never deleted to free space.

Examples:
  trainctl checkpoint verify
  trainctl checkpoint verify log_output/3/checkpoints/step_00000120
  trainctl checkpoint verify /mnt/checkpoints/gpt2 --json | jq -r '.problems[]')");
  command->callback([&chosen, options] { chosen = [options] { return verify(*options); }; });
}

}  // namespace trainctl
