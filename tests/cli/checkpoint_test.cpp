// trainctl checkpoint: what it says of the checkpoints of real runs, whole and damaged.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/checkpointed_run.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

constexpr int kDifferent = 1;

std::vector<nlohmann::json> lines(const std::string& text) {
  std::vector<nlohmann::json> rows;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

}  // namespace

TEST_CASE("checkpoint list says step, epochs, size and state of a run's checkpoints, the newest last") {
  const CheckpointedRun run;
  for (const char* where : {"1", "latest", "log_output/1", "log_output/1/", "log_output/1/checkpoints"}) {
    CAPTURE(where);
    const CommandResult listed = run.checkpoint({"list", where});
    CHECK(listed.exit_code == kExitDone);
    CHECK(contains(listed.out, "step_00000008  complete\n"));
    CHECK(listed.out.find("step_00000008") < listed.out.find("step_00000016"));
  }
  const auto rows = lines(run.checkpoint({"list", "--json"}).out);
  REQUIRE(rows.size() == 2);
  CHECK(rows[1]["step"] == 16);
  CHECK(rows[1]["state"] == "complete");
  CHECK(rows[1]["samples"] == 128);
  CHECK(rows[1]["bytes"].get<int>() > 1000);

  fs::create_directory(run.scratch.path() + "/" + run.folder + "/.step_00000020.attempt_1");
  fs::create_directory(run.scratch.path() + "/" + run.folder + "/.step_00000024.attempt_0");
  run.flip(run.last + "/checkpoint.json", 200);
  const std::string listed = run.checkpoint({"list"}).out;
  CHECK(contains(listed, "  damaged: log_output/1/checkpoints/step_00000016/checkpoint.json: "));
  CHECK(contains(listed, ".step_00000020.attempt_1  being written\n"));
}

TEST_CASE("checkpoint show gives files, tensors and pieces") {
  const CheckpointedRun run;
  const CommandResult shown = run.checkpoint({"show", "1", "--pieces"});
  CHECK(contains(shown.out, "log_output/1/checkpoints/step_00000016\n  job small, run 1, attempt 1, written "));
  CHECK(contains(shown.out, "step 16, 2 epochs, 128 samples, seed 1"));
  CHECK(contains(shown.out, "rank.0001.safetensors"));
  CHECK(contains(shown.out, "fc1.weight  weight  F32   [16, 8]"));
  CHECK(contains(shown.out, " in rank.0000.safetensors\n"));
  const nlohmann::json all = nlohmann::json::parse(run.checkpoint({"show", run.first, "--json"}).out);
  CHECK(all["step"] == 8);
  REQUIRE(all["tensors"].size() == 4);
  CHECK(all["tensors"][0]["shape"] == nlohmann::json::array({16, 8}));
  const CommandResult of_file = run.checkpoint({"show", run.last + "/model.safetensors", "--tensors", "out.*"});
  CHECK(contains(of_file.out, "out.weight:weight  F32   [1, 16]     64\n"));
  CHECK_FALSE(contains(of_file.out, "fc1"));
  CHECK(run.checkpoint({"show", "--tensors", "nothing"}).exit_code == kExitSpec);
}

TEST_CASE("checkpoint verify records intact checkpoints, and names a damaged file and the reason") {
  const CheckpointedRun run;
  const CommandResult whole = run.checkpoint({"verify"});
  CHECK(whole.exit_code == kExitDone);
  CHECK(contains(whole.out, "step_00000008: intact, 5 files, "));
  CHECK(contains(run.checkpoint({"list"}).out, "step_00000016  verified\n"));
  run.flip(run.last + "/rank.0001.safetensors");
  const CommandResult damaged = run.checkpoint({"verify", "1"});
  CHECK(damaged.exit_code == kExitEnv);
  CHECK(contains(damaged.out, "step_00000008: intact"));
  CHECK(contains(damaged.out, "step_00000016: damaged\n"));
  CHECK(contains(damaged.out, "rank.0001.safetensors: its content has changed since it was written"));
  CHECK(contains(damaged.out, "1 of 2 checkpoints damaged\n"));
  CHECK(contains(run.checkpoint({"list"}).out, "step_00000016  complete\n"));  // the note is gone
  CHECK(run.checkpoint({"verify", run.first}).exit_code == kExitDone);
  const auto rows = lines(run.checkpoint({"verify", run.last, "--json"}).out);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0]["problems"].size() == 1);
}

TEST_CASE("checkpoint diff exits 0 for equal tensors and 1 for others") {
  const CheckpointedRun run;
  const CommandResult same = run.checkpoint({"diff", run.last, "1"});
  CHECK(same.exit_code == kExitDone);
  CHECK(contains(same.out, "4 of 4 tensors are equal\n"));
  const CommandResult other = run.checkpoint({"diff", run.first, run.last});
  CHECK(other.exit_code == kDifferent);
  CHECK(contains(other.out, "A log_output/1/checkpoints/step_00000008 (step 8)\n"));
  CHECK(contains(other.out, "fc1.weight:weight  F32 "));
  const nlohmann::json all = nlohmann::json::parse(run.checkpoint({"diff", run.first, run.last, "--json"}).out);
  CHECK(all["equal"] == false);
  CHECK(all["step_b"] == 16);
  CHECK(all["tensors"].size() == 4);
  CHECK(all["tensors"][0]["max_abs"].get<double>() > 0);
}

TEST_CASE("checkpoint merge writes what train.checkpoint.integrated leaves, and refuses damaged numbers") {
  const CheckpointedRun run;
  const CommandResult merged = run.checkpoint({"merge", "1", "-o", "m.safetensors"});
  INFO(merged.err);
  CHECK(merged.exit_code == kExitDone);
  CHECK(run.checkpoint({"diff", "m.safetensors", run.last + "/model.safetensors"}).exit_code == kExitDone);
  CHECK(contains(run.checkpoint({"merge", "1", "-o", "m.safetensors"}).err,
                 "m.safetensors already exists; replace it with --force"));
  CHECK(run.checkpoint({"merge", "1", "-o", "m.safetensors", "--force"}).exit_code == kExitDone);
  run.flip(run.last + "/rank.0000.safetensors");
  const CommandResult named = run.checkpoint({"merge", run.last, "-o", "n.safetensors"});
  CHECK(named.exit_code == kExitEnv);
  CHECK(contains(named.err, "step_00000016 is damaged: "));
  CHECK_FALSE(fs::exists(run.scratch.path() + "/n.safetensors"));
  const CommandResult before = run.checkpoint({"merge", "1", "-o", "n.safetensors"});
  CHECK(before.exit_code == kExitDone);
  CHECK(contains(before.err, "step_00000016 was skipped: "));
  CHECK(contains(before.out, "of step 8, from "));
}

TEST_CASE("a run resumes from the checkpoint before a damaged one, and from none if all are damaged") {
  const CheckpointedRun run;
  const std::vector<std::string> again = {"run", run.job, "--resume", "train.epochs=3"};
  run.flip(run.last + "/rank.0000.safetensors");
  const CommandResult resumed = run(again);
  INFO(resumed.err);
  CHECK(resumed.exit_code == kExitDone);
  CHECK(contains(resumed.out + resumed.err, "step_00000016 was skipped: "));
  CHECK(contains(resumed.out + resumed.err, "resuming after step 8 "));
  for (const int step : {16, 24}) {
    const std::string path = "log_output/2/checkpoints/step_000000" + std::to_string(step);
    if (fs::exists(run.scratch.path() + "/" + path)) run.flip(path + "/job.yaml");
  }
  run.flip(run.first + "/checkpoint.json", 3);
  const CommandResult refused = run(again);
  CHECK(refused.exit_code == kExitEnv);
  CHECK(contains(refused.err, "no complete checkpoint"));
}

TEST_CASE("checkpoint says what is wrong with an argument that names no checkpoint") {
  const CheckpointedRun run;
  const auto complaint = [&](const std::vector<std::string>& words) {
    const CommandResult result = run.checkpoint(words);
    CHECK(result.exit_code == kExitSpec);
    CHECK(result.out.empty());
    return result.err;
  };
  CHECK(contains(complaint({"list", "7"}), "no run 7 in log_output"));
  CHECK(contains(complaint({"show", "nowhere"}), "'nowhere' is neither a folder nor a run number"));
  CHECK(contains(complaint({"show", "best"}), "no checkpoint of run 1 has a validation loss"));
  CHECK(contains(complaint({"show", "best", "--log-dir", "empty_logs"}), "no run in empty_logs has a checkpoint"));
  CHECK(contains(complaint({"list", run.last}), "is a single checkpoint, not a folder of checkpoints"));
  fs::create_directory(run.scratch.path() + "/empty");
  CHECK(contains(complaint({"show", "empty"}), "no complete checkpoint in empty"));
  CHECK(contains(complaint({"verify", "empty"}), "no checkpoints in empty"));
  CHECK(contains(run.checkpoint({"list", "empty"}).out, "no checkpoints in empty"));
  CHECK(contains(complaint({}), "missing command; available commands: list, show, verify, diff, merge"));
  const CommandResult unsaved = run({"run", run.job, "train.checkpoint=none"});
  REQUIRE(unsaved.exit_code == kExitDone);
  CHECK(contains(complaint({"list", "2"}), "run 2 has no checkpoints: its job sets train.checkpoint: none"));
}

TEST_CASE("checkpoints in train.checkpoint.dir are found through their run") {
  const CheckpointedRun run;
  const CommandResult saved = run({"run", run.job, "train.checkpoint.dir=elsewhere"});
  REQUIRE(saved.exit_code == kExitDone);
  CHECK(contains(run.checkpoint({"list", "2"}).out, "/elsewhere\n"));
  CHECK(run.checkpoint({"diff", "1", "2"}).exit_code == kExitDone);
}
