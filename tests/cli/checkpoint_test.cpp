// trainctl checkpoint: what it says of the checkpoints of real runs, whole and damaged.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

constexpr int kDifferent = 1;

/// Run 1 of two epochs of 8 steps on two ranks, saved at steps 8 and 16.
struct SavedRun {
  Scratch scratch;
  const std::string folder = "log_output/1/checkpoints", first = folder + "/step_00000008",
                    last = folder + "/step_00000016";
  std::string job;

  explicit SavedRun(const std::string& more = "") {
    job = small_job(scratch.path(),
                    "train: {epochs: 2, checkpoint: {every_epochs: 1, integrated: true}}\n"
                    "parallel: {mode: data_parallel, optimizer_shard: {level: 1, min_kb: 0}}\n"
                    "launch: {ranks: 2, device: cpu}\n" +
                        more);
    const CommandResult result = (*this)({"run", job});
    INFO(result.err);
    REQUIRE(result.exit_code == kExitDone);
  }

  CommandResult operator()(const std::vector<std::string>& words) const {
    return trainctl_command(scratch.path(), words);
  }
  CommandResult checkpoint(std::vector<std::string> words) const {
    words.insert(words.begin(), "checkpoint");
    return (*this)(words);
  }
  void flip(const std::string& file, std::streamoff from_end = 1) const {
    std::fstream stream(scratch.path() + "/" + file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-from_end, std::ios::end);
    const int byte = stream.get();
    stream.seekp(-from_end, std::ios::end);
    stream.put(static_cast<char>(byte ^ 1));
  }
};

std::vector<nlohmann::json> lines(const std::string& text) {
  std::vector<nlohmann::json> rows;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

}  // namespace

TEST_CASE("checkpoint list says step, epochs, size and state of a run's checkpoints, the newest last") {
  const SavedRun run;
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
  const SavedRun run;
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
  const SavedRun run;
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
  const SavedRun run;
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
  const SavedRun run;
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
  const SavedRun run;
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

TEST_CASE("plan states the bytes of each rank's file and of all files, as they are written") {
  const SavedRun run;
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

TEST_CASE("checkpoint says what is wrong with an argument that names no checkpoint") {
  const SavedRun run;
  const auto complaint = [&](const std::vector<std::string>& words) {
    const CommandResult result = run.checkpoint(words);
    CHECK(result.exit_code == kExitSpec);
    CHECK(result.out.empty());
    return result.err;
  };
  CHECK(contains(complaint({"list", "7"}), "no run 7 in log_output"));
  CHECK(contains(complaint({"show", "nowhere"}), "'nowhere' is neither a folder nor a run number"));
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
  const SavedRun run;
  const CommandResult saved = run({"run", run.job, "train.checkpoint.dir=elsewhere"});
  REQUIRE(saved.exit_code == kExitDone);
  CHECK(contains(run.checkpoint({"list", "2"}).out, "/elsewhere\n"));
  CHECK(run.checkpoint({"diff", "1", "2"}).exit_code == kExitDone);
}
