// trainctl plan: the bytes of checkpoints and the memory of a validation, as a real run has them.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/checkpointed_run.h"

using namespace trainctl;
namespace fs = std::filesystem;

TEST_CASE("plan states the bytes of each rank's file and of all files, as they are written") {
  const CheckpointedRun run;
  const nlohmann::json plan = nlohmann::json::parse(run({"plan", run.job, "--json"}).out)["checkpoint"];
  const auto size = [&](const std::string& name) {
    return static_cast<int64_t>(fs::file_size(run.scratch.path() + "/" + run.last + "/" + name));
  };
  int64_t all = 0;
  for (const nlohmann::json& row : plan["ranks"])
    for (const int rank : row["ranks"]) {
      CHECK(row["bytes"] == size("rank.000" + std::to_string(rank) + ".safetensors"));
      all += row["bytes"].get<int64_t>();
    }
  CHECK(plan["files"] == 5);
  CHECK(plan["bytes"] == all + plan["integrated_bytes"].get<int64_t>());
  const int64_t metadata = size("model.safetensors") - plan["integrated_bytes"].get<int64_t>();
  CHECK(metadata >= 0);
  CHECK(metadata < 200);
  const std::string text = run({"plan", run.job}).out;
  CHECK(contains(text, "\ncheckpoint, per rank\n"));
  CHECK(contains(text, " in 5 files, "));
  CHECK_FALSE(contains(run({"plan", run.job, "train.checkpoint=none"}).out, "checkpoint"));
  const std::string weights = run({"plan", run.job, "train.checkpoint=null"}).out;
  CHECK(contains(weights, "\nfinal weights: "));
  CHECK(contains(weights, ", saved in log_output/<run>/checkpoints at the end of the run\n"));
}

TEST_CASE("plan states the memory of a validation, and counts the part that it cannot share with the training") {
  const Scratch scratch;
  const std::string job = small_job(scratch.path(), "validation: {dataset: {samples: 64}}\n");
  const auto plan = [&](const std::string& more) {
    return nlohmann::json::parse(trainctl_command(scratch.path(), {"plan", job, "--json", more}).out);
  };
  const auto total = [](const nlohmann::json& report) { return report["rank_classes"][0]["memory"]["total"].get<int64_t>(); };
  const nlohmann::json with = plan("train.steps=1"), without = plan("validation=null");
  CHECK(with["validation"]["samples"] == 64);
  CHECK(with["validation"]["rank_classes"][0]["memory"]["activations"].get<int64_t>() >= 8 * 8 * 4);  // a batch of data
  const int64_t more = with["rank_classes"][0]["memory"].value("validation", int64_t{0});
  CHECK(total(with) == total(without) + more);
  CHECK(more <
        with["validation"]["rank_classes"][0]["memory"]["activations"].get<int64_t>());  // most fits into a step's
  CHECK_FALSE(without.contains("validation"));
  CHECK(contains(trainctl_command(scratch.path(), {"plan", job}).out,
                 "\nvalidation of 64 samples in batches of 8, memory per rank\n"));
}
