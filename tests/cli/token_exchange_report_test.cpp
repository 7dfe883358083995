// The bytes of tokens that ranks send to experts: what the plan states, and what the run counts.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

TEST_CASE("a plan states the expected and the most bytes of tokens that a step exchanges, and the run counts them") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << job_text("moe");
  std::vector<std::string> words = {"plan",           "job.yaml",          "parallel.mode=semi_auto_parallel",
                                    "launch.ranks=2", "parallel.expert=2", "parallel.expert_method=all_to_all",
                                    "train.steps=3"};
  const CommandResult text = trainctl_command(scratch.path(), words);
  CHECK(contains(text.out, "note: tokens that a step sends to experts and back: "));
  words.push_back("--json");
  const auto plan = nlohmann::json::parse(trainctl_command(scratch.path(), words).out, nullptr, false);
  words.front() = "run";
  words.pop_back();
  const CommandResult run = trainctl_command(scratch.path(), words);
  INFO(run.out << run.err);
  REQUIRE(run.exit_code == kExitDone);
  std::ifstream file(scratch.path() + "/log_output/1/outcome.json");
  const auto outcome = nlohmann::json::parse(file, nullptr, false);
  REQUIRE(plan.contains("token_exchange"));
  REQUIRE(outcome.contains("token_exchange"));
  const auto &planned = plan["token_exchange"], &counted = outcome["token_exchange"];
  CHECK(counted["steps"] == 3);
  CHECK(counted["expected_bytes"] == 3 * planned["expected_bytes"].get<int64_t>());
  CHECK(counted["most_bytes"] == 3 * planned["most_bytes"].get<int64_t>());
  // The router has random weights, so each expert is chosen about equally often.
  const auto expected = counted["expected_bytes"].get<double>(), bytes = counted["bytes"].get<double>();
  CHECK(bytes > 0.7 * expected);
  CHECK(bytes < 1.3 * expected);
  CHECK(bytes < counted["most_bytes"].get<double>());
  CHECK(contains(run.out + run.err, " of tokens sent to experts and back; "));
}
