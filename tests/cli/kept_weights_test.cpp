// Weights that a run without train.checkpoint keeps, their uses, and the runs that `latest` means.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/train/checkpoint/manifest.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

constexpr const char* kAdam = "optimizer={type: adam, learning_rate: 0.01}";

struct WeightsScratch {
  WeightsScratch() { small_job(scratch.path(), "validation: {dataset: {samples: 64}}\n"); }
  CommandResult run(const std::vector<std::string>& words) const { return trainctl_command(scratch.path(), words); }
  std::string path(const std::string& name) const { return scratch.path() + "/" + name; }
  const Scratch scratch;
};

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  return text.substr(text.rfind('\n', end) + 1, end - text.rfind('\n', end));
}

}  // namespace

TEST_CASE("a run without train.checkpoint keeps its final weights, and no state of the optimizer") {
  const WeightsScratch s;
  const CommandResult run = s.run({"run", "job.yaml", kAdam, "train.steps=5"});
  REQUIRE(run.exit_code == kExitDone);
  CHECK(contains(run.out, "final weights of step 5: "));
  const Manifest manifest = read_manifest(s.path("log_output/1/checkpoints/step_00000005"));
  CHECK(manifest.weights_only);
  for (const StoredTensor& tensor : manifest.tensors) CHECK(tensor.slot == "weight");
  CHECK(s.run({"evaluate", "job.yaml", "--checkpoint", "1"}).exit_code == kExitDone);
  CHECK(s.run({"checkpoint", "export", "1", "-o", "model.safetensors"}).exit_code == kExitDone);
}

TEST_CASE("train.checkpoint: none keeps nothing") {
  const WeightsScratch s;
  const CommandResult run = s.run({"run", "job.yaml", "train={steps: 3, checkpoint: none}"});
  REQUIRE(run.exit_code == kExitDone);
  CHECK_FALSE(fs::exists(s.path("log_output/1/checkpoints")));
  const CommandResult wrong =
      s.run({"check", "job.yaml", "train={steps: 3, checkpoint: {every: none, every_steps: 2}}"});
  CHECK(wrong.exit_code == kExitSpec);
  CHECK(contains(wrong.err, "train.checkpoint.every_steps: `every: none` saves nothing"));
}

TEST_CASE("final weights continue only with a fresh optimizer, and --resume passes over them") {
  const WeightsScratch s;
  const std::string saved = "train={steps: 4, checkpoint: {every_steps: 4}}";
  REQUIRE(s.run({"run", "job.yaml", kAdam, "train.steps=5"}).exit_code == kExitDone);
  const CommandResult none = s.run({"run", "job.yaml", kAdam, "train.steps=9", "--resume"});
  CHECK(none.exit_code == kExitEnv);
  CHECK(contains(none.err, "it contains only final weights; use --resume-from and --partial to start from them"));
  const CommandResult whole = s.run({"run", "job.yaml", kAdam, "train.steps=9", "--resume-from", "1"});
  CHECK(whole.exit_code == kExitEnv);
  CHECK(contains(whole.err, "contains only the final weights of a run, without the optimizer state"));
  const CommandResult partial = s.run({"run", "job.yaml", kAdam, "train.steps=9", "--resume-from", "1", "--partial"});
  CHECK(partial.exit_code == kExitDone);
  CHECK(contains(partial.out, "resuming after step 5 "));
  const Scratch other;
  small_job(other.path());
  REQUIRE(trainctl_command(other.path(), {"run", "job.yaml", kAdam, saved}).exit_code == kExitDone);
  REQUIRE(trainctl_command(other.path(), {"run", "job.yaml", kAdam, "train.steps=5"}).exit_code == kExitDone);
  const CommandResult resumed =
      trainctl_command(other.path(), {"run", "job.yaml", kAdam, "train={steps: 6, checkpoint: auto}", "--resume"});
  CHECK(resumed.exit_code == kExitDone);
  CHECK(contains(resumed.out, "resuming after step 4 "));
}

TEST_CASE("evaluations do not count as runs: latest and --resume refer to runs that trained") {
  const WeightsScratch s;
  const std::string train = "train={steps: 4, checkpoint: auto}";
  REQUIRE(s.run({"run", "job.yaml", train}).exit_code == kExitDone);
  for (int i = 0; i < 2; ++i) {
    const CommandResult evaluated = s.run({"evaluate", "job.yaml", "--checkpoint", "latest", "--json"});
    REQUIRE(evaluated.exit_code == kExitDone);
    CHECK(nlohmann::json::parse(evaluated.out).at("step") == 4);
  }
  CHECK(s.run({"predict", "job.yaml", "--checkpoint", "latest", "--layer", "out", "-o", "o.npy"}).exit_code ==
        kExitDone);
  CHECK(fs::exists(s.path("log_output/evaluations/2/evaluation.json")));
  CHECK(contains(s.run({"checkpoint", "list"}).out, "log_output/1/checkpoints\n"));
  CHECK(contains(s.run({"logs", "latest"}).err, "--- run 1: done after "));
  const CommandResult resumed =
      s.run({"run", "job.yaml", "train={steps: 6, checkpoint: auto}", "--resume-from", "latest"});
  CHECK(resumed.exit_code == kExitDone);
  CHECK(contains(resumed.out, "resuming after step 4 "));
  CHECK(fs::exists(s.path("log_output/2/outcome.json")));
}

TEST_CASE("a folder of checkpoints serves one lineage: others are refused before they train") {
  const WeightsScratch s;
  const auto train = [](int steps) {
    return "train={steps: " + std::to_string(steps) + ", checkpoint: {every_steps: 4, dir: ck, keep: 1}}";
  };
  REQUIRE(s.run({"run", "job.yaml", "name=alice", train(4)}).exit_code == kExitDone);
  for (const char* name : {"name=bob", "name=alice"}) {
    const CommandResult refused = s.run({"run", "job.yaml", name, train(8)});
    CHECK(refused.exit_code == kExitSpec);
    CHECK(contains(refused.err, "train.checkpoint.dir: cannot save in 'ck': it contains step 4 of the job 'alice'"));
    CHECK(contains(refused.err, "use --resume to continue"));
  }
  CHECK_FALSE(fs::exists(s.path("log_output/2")));
  CHECK(contains(s.run({"run", "job.yaml", "name=bob", train(8), "--resume"}).err, "it belongs to the job 'alice'"));
  const CommandResult from = s.run({"run", "job.yaml", "name=bob", train(8), "--resume-from", "ck/step_00000004"});
  CHECK(from.exit_code == kExitSpec);
  CHECK(contains(from.err, "cannot save in 'ck'"));
  CHECK(fs::exists(s.path("ck/step_00000004")));
  const CommandResult resumed = s.run({"run", "job.yaml", "name=alice", train(8), "--resume"});
  CHECK(resumed.exit_code == kExitDone);
  CHECK(contains(resumed.out, "resuming after step 4 "));
  CHECK(fs::exists(s.path("ck/step_00000008")));
  CHECK_FALSE(fs::exists(s.path("ck/step_00000004")));  // its own
  const CommandResult by_number = s.run({"run", "job.yaml", "name=alice", train(12), "--resume-from", "2"});
  CHECK(by_number.exit_code == kExitDone);
  CHECK(contains(by_number.out, "resuming after step 8 "));
}

TEST_CASE("a run whose last state is not on the disk fails, and says so last") {
  const WeightsScratch s;
  for (const bool is_state : {true, false}) {
    for (const bool is_stopped : {true, false}) {
      CAPTURE(is_state);
      CAPTURE(is_stopped);
      fs::create_directory(s.path("folder"));
      const std::string saves = is_state ? "{every_minutes: 1000, dir: folder}" : "{every: weights, dir: folder}";
      const std::string steps = is_stopped ? "1000000000" : "20000";
      const int pid = start_trainctl(s.scratch.path(), {"run", "job.yaml", "train.log_every=100",
                                                        "train={steps: " + steps + ", checkpoint: " + saves + "}"});
      REQUIRE(eventually([&] { return contains(slurp(s.path("out")), " step: "); }));
      fs::rename(s.path("folder"), s.path("gone"));
      std::ofstream(s.path("folder")) << "a file";
      if (is_stopped) kill(pid, SIGTERM);
      const CommandResult ended = finish_trainctl(s.scratch.path(), pid);
      CHECK(ended.exit_code == (is_stopped ? 143 : kExitEnv));  // a signal is the reason before all others
      CHECK(contains(ended.err, is_state ? "was not saved: " : "were not saved: "));
      CHECK(contains(last_line(ended.err), is_state ? "no checkpoint of this run was written" : "were not saved: "));
      CHECK_FALSE(contains(ended.out, "done after"));
      fs::remove(s.path("folder"));
      fs::remove_all(s.path("gone"));
    }
  }
  CHECK(contains(s.run({"logs", "2"}).err, "finished without saving after "));
  CHECK(contains(s.run({"ps", "-a"}).out, "failed"));
}
