// Jobs with parameters that are large enough for the copy engines, on two GPUs: their losses against one CPU rank's.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/command.h"
#include "tests/gpu/gpus.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

std::vector<double> losses_of(const std::vector<std::string>& overrides) {
  const Scratch scratch;
  std::vector<std::string> arguments = {"run", job_file("wide")};
  arguments.insert(arguments.end(), overrides.begin(), overrides.end());
  const CommandResult result = trainctl_command(scratch.path(), arguments);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  std::ifstream file(scratch.path() + "/log_output/1/metrics.jsonl");
  std::vector<double> losses;
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line, nullptr, false);
    if (row.contains("loss")) losses.push_back(row["loss"]);
  }
  return losses;
}

}  // namespace

TEST_CASE("gradients and weights that copy engines move follow one CPU rank at every level, with the same bits twice") {
  if (!have_gpus(2)) return;
  const std::vector<double> expected = losses_of({"launch.device=cpu"});
  REQUIRE(expected.size() == 8);
  for (const char* more : {"parallel.optimizer_shard=0", "parallel.optimizer_shard=1", "parallel.optimizer_shard=2",
                           "parallel.optimizer_shard=3", "parallel.micro_batches=2", "optimizer.clip_norm=0.5"}) {
    CAPTURE(more);
    const bool clipped = std::string(more).starts_with("optimizer");
    const std::vector<double> reference = clipped ? losses_of({"launch.device=cpu", more}) : expected;
    const std::vector<std::string> plan = {"launch.device=cuda", "launch.ranks=2", "parallel.mode=data_parallel", more,
                                           clipped ? "parallel.optimizer_shard=2" : "train.sink_steps=4"};
    const std::vector<double> found = losses_of(plan);
    REQUIRE(found.size() == reference.size());
    for (size_t i = 0; i < found.size(); ++i) CHECK(std::abs(found[i] - reference[i]) < 1e-4 * reference[i]);
    CHECK(losses_of(plan) == found);
  }
}
