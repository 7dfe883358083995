// trainctl run --profile, with real ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, false);
}

std::vector<std::string> run_words(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"run", "job.yaml", "launch.ranks=4", "parallel.mode=data_parallel",
                                    "train.steps=6"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

TEST_CASE("run --profile leaves one trace of all ranks with every instruction of the steps, and a summary") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult result = trainctl_command(scratch.path(), run_words({"--profile", "--profile-steps", "2-4"}));
  REQUIRE(result.exit_code == kExitDone);
  CHECK(contains(result.out, "profile of steps 2-4: "));
  CHECK(contains(result.out, "step time by part, compared with the limits of cpu ("));
  CHECK(contains(result.out, "optimize first: "));
  CHECK(contains(result.out, "trace of all ranks: log_output/1/trace.json"));
  const nlohmann::json plan = read_json(scratch.path() + "/log_output/1/plan.json");
  const nlohmann::json profile = read_json(scratch.path() + "/log_output/1/profile.json");
  REQUIRE(profile["ranks"].size() == 4);
  CHECK(profile["steps"] == "2-4");
  for (const nlohmann::json& rank : profile["ranks"])
    CHECK(rank["compute"].get<double>() + rank["communication"].get<double>() + rank["waiting"].get<double>() +
              rank["idle"].get<double>() ==
          doctest::Approx(1));
  CHECK(profile["tasks"][0]["tasks"] == plan["tasks"][0]["tasks"]);
  const nlohmann::json trace = read_json(scratch.path() + "/log_output/1/trace.json");
  REQUIRE(trace.is_object());
  std::map<int, std::map<int, int>> seen;  // rank, instruction, times
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    tracks[{event["pid"], event["tid"]}].emplace_back(event["ts"], event["dur"]);
    if (event["args"].contains("instruction")) ++seen[event["pid"]][event["args"]["instruction"]];
  }
  REQUIRE(seen.size() == 4);
  for (const auto& [rank, instructions] : seen) {
    CHECK(instructions.size() == plan["rank_classes"][0]["instructions"].get<size_t>());
    for (const auto& [instruction, times] : instructions) CHECK(times == 3);
    CHECK(read_json(scratch.path() + "/log_output/1/rank." + std::to_string(rank) + "/trace.json").is_object());
  }
  for (auto& [track, slices] : tracks) {
    std::sort(slices.begin(), slices.end());
    for (size_t i = 1; i < slices.size(); ++i) {
      CHECK(slices[i - 1].first + slices[i - 1].second <= slices[i].first + 1e-6);
    }
  }
}

TEST_CASE("--profile=FILE names the trace of all ranks") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult result = trainctl_command(scratch.path(), run_words({"--profile=own.json", "--profile-steps=1"}));
  REQUIRE(result.exit_code == kExitDone);
  CHECK(contains(result.out, "profile of step 1: "));
  CHECK(read_json(scratch.path() + "/own.json").is_object());
  CHECK_FALSE(std::filesystem::exists(scratch.path() + "/log_output/1/trace.json"));
}

TEST_CASE(
    "a run that ends before the profiled steps says so, and one that ends within them shows the steps that it has") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult before = trainctl_command(scratch.path(), run_words({"--profile", "--profile-steps=7-9"}));
  CHECK(before.exit_code == kExitDone);
  CHECK(contains(before.out, "no profile: no rank finished step 7"));
  CHECK_FALSE(std::filesystem::exists(scratch.path() + "/log_output/1/trace.json"));
  const CommandResult among = trainctl_command(scratch.path(), run_words({"--profile", "--profile-steps=6-8"}));
  CHECK(among.exit_code == kExitDone);
  CHECK(contains(among.out, "profile of step 6: "));
  CHECK(read_json(scratch.path() + "/log_output/2/trace.json").is_object());
}

TEST_CASE("impossible profiles are refused before a rank is started") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult wrong = trainctl_command(scratch.path(), run_words({"--profile", "--profile-steps=5-3"}));
  CHECK(wrong.exit_code == kExitSpec);
  CHECK(contains(wrong.err, "--profile-steps"));
  CHECK(trainctl_command(scratch.path(), run_words({"--profile-steps=3-5"})).exit_code == kExitSpec);
  std::ofstream(scratch.path() + "/command.yaml") << "name: program\ncommand: [\"true\"]\nlaunch: {ranks: 1}\n";
  const CommandResult command = trainctl_command(scratch.path(), {"run", "command.yaml", "--profile"});
  CHECK(command.exit_code == kExitSpec);
  CHECK(contains(command.err, "this job runs a program"));
  CHECK_FALSE(std::filesystem::exists(scratch.path() + "/log_output"));
}
