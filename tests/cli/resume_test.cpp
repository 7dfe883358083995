// Tests of saves and resumes of real runs: when they happen, from which checkpoint, and with which losses.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "engine/base/error.h"
#include "engine/train/checkpoint/checkpoint_names.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

/// tests/jobs/small.yaml on two ranks: 8 steps per epoch.
std::vector<std::string> resume_run_words(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"run", "job.yaml", "launch.ranks=2", "parallel.mode=data_parallel",
                                    "optimizer={type: adam, learning_rate: 0.01}"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string train_steps(int64_t steps, const std::string& checkpoint) {
  return "train={steps: " + std::to_string(steps) + ", checkpoint: {" + checkpoint + "}}";
}

std::string file_of(const Scratch& scratch, int run, const std::string& name) {
  return RunDirectory(scratch.path() + "/log_output", run).file(name);
}

/// Lines of steps and epochs after the first `steps`.
std::string lines_after(const Scratch& scratch, int run, int64_t steps) {
  std::istringstream text(slurp(file_of(scratch, run, "rank.0/stdout")));
  std::string line, lines;
  for (int64_t seen = 0; std::getline(text, line);) {
    if (!line.starts_with("epoch: ")) continue;
    if (contains(line, " step: ")) ++seen;
    if (seen > steps) lines += line + "\n";
  }
  return lines;
}

int64_t saved_step(const Scratch& scratch, int run) {
  const nlohmann::json outcome = nlohmann::json::parse(slurp(file_of(scratch, run, "outcome.json")), nullptr, false);
  return outcome.is_object() ? outcome.value("saved_step", int64_t{-1}) : -1;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> names = names_in(folder);
  std::erase_if(names, [](const std::string& name) { return !contains(name, "step_"); });
  return names;
}

/// Checks that the loss lines of run `run`, which continued after `step`, are those of a run that nothing stopped.
void check_like_uninterrupted(const Scratch& scratch, int run, int64_t step, int64_t steps) {
  const Scratch whole;
  small_job(whole.path());
  REQUIRE(trainctl_command(whole.path(), resume_run_words({"train.steps=" + std::to_string(steps)})).exit_code ==
          kExitDone);
  const std::string lines = lines_after(scratch, run, 0);
  CHECK(std::count(lines.begin(), lines.end(), '\n') >= steps - step);
  CHECK(lines == lines_after(whole, 1, step));
}

/// Steps of metrics.jsonl, in its order.
std::vector<int64_t> logged_steps(const Scratch& scratch, int run) {
  std::istringstream text(slurp(file_of(scratch, run, "metrics.jsonl")));
  std::vector<int64_t> steps;
  for (std::string line; std::getline(text, line);)
    if (const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
        json.is_object() && json.contains("learning_rate"))
      steps.push_back(json.value("run_step", int64_t{0}));
  return steps;
}

std::vector<int64_t> every_step(int64_t last) {
  std::vector<int64_t> steps(static_cast<size_t>(last));
  std::iota(steps.begin(), steps.end(), 1);
  return steps;
}

void flip_byte(const std::string& path, int64_t from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const auto at = file.tellg();
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 0x40));
}

/// "epoch: 3 step: 1, loss is 1.5318" of a run, from epoch `first` on.
std::vector<std::string> loss_lines(const std::string& out, int first) {
  std::istringstream text(out);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);)
    if (line.starts_with("epoch: ") && std::stoi(line.substr(7)) >= first) lines.push_back(line);
  return lines;
}

constexpr int64_t kEndless = 1'000'000'000;

}  // namespace

TEST_CASE(
    "SIGUSR1 saves and training continues, SIGTERM saves and stops, and a resumed run logs the same losses as an "
    "uninterrupted run") {
  const Scratch scratch;
  small_job(scratch.path());
  const int pid = start_trainctl(scratch.path(), resume_run_words({train_steps(kEndless, "every_minutes: 1000")}));
  const std::string stdout_of_rank = file_of(scratch, 1, "rank.0/stdout");
  REQUIRE(eventually([&] { return contains(slurp(stdout_of_rank), "step: 3"); }));
  CHECK_FALSE(contains(slurp(scratch.path() + "/out"), "checkpoint of step"));
  kill(pid, SIGUSR1);
  REQUIRE(eventually([&] { return contains(slurp(scratch.path() + "/out"), "checkpoint of step"); }));
  const std::vector<std::string> first = checkpoints_in(file_of(scratch, 1, "checkpoints"));
  REQUIRE(first.size() == 1);
  const auto size = fs::file_size(stdout_of_rank);
  CHECK(eventually([&] { return fs::file_size(stdout_of_rank) > size; }));
  kill(pid, SIGTERM);
  const CommandResult stopped = finish_trainctl(scratch.path(), pid);
  CHECK(stopped.exit_code == 143);
  const int64_t step = saved_step(scratch, 1);
  CHECK(contains(stopped.out, "stopped by SIGTERM at the end of step " + std::to_string(step)));
  const int64_t steps = step + 21;
  const CommandResult resumed =
      trainctl_command(scratch.path(), resume_run_words({train_steps(steps, "every_minutes: 1000"), "--resume"}));
  CHECK(resumed.exit_code == kExitDone);
  CHECK(contains(resumed.out, "resuming after step " + std::to_string(step)));
  check_like_uninterrupted(scratch, 2, step, steps);

  const int64_t early = std::stoll(first[0].substr(5));
  const CommandResult from =
      trainctl_command(scratch.path(), resume_run_words({"train.steps=" + std::to_string(early + 9), "--resume-from",
                                                         "log_output/1/checkpoints/" + first[0]}));
  CHECK(from.exit_code == kExitDone);
  check_like_uninterrupted(scratch, 3, early, early + 9);
}

TEST_CASE(
    "after a rank fails, the run restarts from its newest checkpoint and has the losses of a run without a failure") {
  const Scratch scratch;
  small_job(scratch.path());
  const int pid = start_trainctl(
      scratch.path(), resume_run_words({train_steps(kEndless, "every_steps: 9, keep: 3"), "launch.max_restarts=2"}));
  const std::string out = scratch.path() + "/out";
  const auto saves = [&] {  // in the newest attempt
    const std::string text = slurp(out);
    const size_t begin = text.rfind("resuming after step ");
    return contains(begin == std::string::npos ? text : text.substr(begin), "checkpoint of step ");
  };
  for (int time = 0; time < 2; ++time) {
    REQUIRE(eventually([&] { return saves() && workers_of(pid, 2)[1] > 0; }));
    kill(workers_of(pid, 2)[1], SIGKILL);
    const std::string notice = "restarting all ranks (" + std::to_string(time + 1) + " of 2)";
    REQUIRE(eventually([&] { return contains(slurp(out), notice); }));
    REQUIRE(eventually([&] { return contains(slurp(out).substr(slurp(out).find(notice)), "resuming after step "); }));
  }
  REQUIRE(eventually(saves));
  kill(pid, SIGTERM);
  CHECK(finish_trainctl(scratch.path(), pid).exit_code == 143);
  const int64_t step = saved_step(scratch, 1);
  CHECK(logged_steps(scratch, 1) == every_step(step));
  const std::string steps = "train.steps=" + std::to_string(step + 5);
  CHECK(trainctl_command(scratch.path(), resume_run_words({steps, "--resume"})).exit_code == kExitDone);
  check_like_uninterrupted(scratch, 2, step, step + 5);
}

TEST_CASE("a damaged checkpoint is named with file and reason, and the one before it is taken") {
  const Scratch scratch;
  small_job(scratch.path());
  REQUIRE(
      trainctl_command(scratch.path(), resume_run_words({train_steps(30, "async: false, every_steps: 10, keep: 5")}))
          .exit_code == kExitDone);
  const std::string folder = file_of(scratch, 1, "checkpoints");
  REQUIRE(checkpoints_in(folder) == std::vector<std::string>{"step_00000010", "step_00000020", "step_00000030"});
  flip_byte(folder + "/step_00000030/rank.0000.safetensors", 5);
  fs::resize_file(folder + "/step_00000020/rank.0000.safetensors", 100);
  const CommandResult resumed = trainctl_command(scratch.path(), resume_run_words({"train.steps=33", "--resume"}));
  CHECK(resumed.exit_code == kExitDone);
  CHECK(contains(resumed.out, "step_00000030 was skipped: "));
  CHECK(contains(resumed.out, "step_00000020 was skipped: "));
  CHECK(contains(resumed.out, "rank.0000.safetensors"));
  CHECK(contains(resumed.out, "resuming after step 10 "));
  check_like_uninterrupted(scratch, 2, 10, 33);
  const CommandResult named = trainctl_command(
      scratch.path(), resume_run_words({"train.steps=33", "--resume-from", "log_output/1/checkpoints/step_00000030"}));
  CHECK(named.exit_code == kExitEnv);
  CHECK(contains(named.err, "cannot resume from "));
}

TEST_CASE("only the newest checkpoints are kept, and nothing else is left beside them") {
  const Scratch scratch;
  small_job(scratch.path());
  REQUIRE(trainctl_command(scratch.path(), resume_run_words({train_steps(50, "async: false, every_steps: 5, keep: 3")}))
              .exit_code == kExitDone);
  CHECK(names_in(file_of(scratch, 1, "checkpoints")) ==
        std::vector<std::string>{".attempts", ".newest", "step_00000040", "step_00000045", "step_00000050"});
}

TEST_CASE("a run that skipped a damaged checkpoint of a later step keeps what it saves afterwards") {
  const Scratch scratch;
  small_job(scratch.path());
  const std::string dir = "dir: here, async: false, every_steps: 10, keep: 1";
  REQUIRE(trainctl_command(scratch.path(), resume_run_words({train_steps(20, dir + "0")})).exit_code == kExitDone);
  flip_byte(scratch.path() + "/here/step_00000020/rank.0000.safetensors", 5);
  REQUIRE(trainctl_command(scratch.path(), resume_run_words({train_steps(15, dir), "--resume"})).exit_code ==
          kExitDone);
  const CommandResult again = trainctl_command(scratch.path(), resume_run_words({train_steps(15, dir), "--resume"}));
  CHECK(again.exit_code == kExitDone);
  CHECK(contains(again.out, "resuming after step 15 "));
}

TEST_CASE("a run of an older attempt cannot publish once a later one has begun, and says that it has not saved") {
  const Scratch scratch;
  small_job(scratch.path());
  fs::create_directories(scratch.path() + "/later");
  small_job(scratch.path() + "/later");
  const std::string dir = scratch.path() + "/shared", out = scratch.path() + "/out";
  const std::string saves = "every_minutes: 1000, dir: " + dir;
  const int old = start_trainctl(scratch.path(), resume_run_words({train_steps(kEndless, saves)}));
  REQUIRE(eventually([&] { return contains(slurp(file_of(scratch, 1, "rank.0/stdout")), "step: 3"); }));
  kill(old, SIGUSR1);
  REQUIRE(eventually([&] { return checkpoints_in(dir).size() == 1 && contains(slurp(out), "checkpoint of step "); }));
  const int64_t saved = std::stoll(slurp(out).substr(slurp(out).find("checkpoint of step ") + 19));
  REQUIRE(trainctl_command(scratch.path() + "/later", resume_run_words({train_steps(saved + 5, saves), "--resume"}))
              .exit_code == kExitDone);
  kill(old, SIGTERM);
  const CommandResult stopped = finish_trainctl(scratch.path(), old);
  CHECK(stopped.exit_code == 143);
  CHECK(contains(stopped.err, "attempt 1 can no longer write checkpoints, because attempt 2 has started"));
  CHECK(contains(stopped.err, " was not saved: "));
  CHECK(checkpoints_in(dir).size() == 2);
  CHECK(checkpoints_in(dir).back() == trainctl::checkpoint_name(saved + 5));
}

TEST_CASE("a changed network is an error that lists what differs, and --partial restores the tensors that fit") {
  const Scratch scratch;
  small_job(scratch.path());
  REQUIRE(trainctl_command(scratch.path(), resume_run_words({train_steps(5, "every_steps: 5")})).exit_code ==
          kExitDone);
  const std::string network =
      "network=[{name: fc1, type: dense, units: 16}, {name: act1, type: relu}, "
      "{name: fc2, type: dense, units: 4}, {name: out, type: dense, units: 1}]";
  const std::vector<std::string> words = resume_run_words({"train.steps=9", network, "--resume"});
  const CommandResult refused = trainctl_command(scratch.path(), words);
  CHECK(refused.exit_code == kExitEnv);
  CHECK(contains(refused.err, "fc2.weight"));
  CHECK(contains(refused.err, "out.weight is [1, 4] in the job, but [1, 16] in the checkpoint"));
  CHECK(contains(refused.err, "--partial restores the tensors that fit"));
  std::vector<std::string> partial = words;
  partial.push_back("--partial");
  const CommandResult taken = trainctl_command(scratch.path(), partial);
  CHECK(taken.exit_code == kExitDone);
  CHECK(contains(taken.out, "resuming after step 5 "));
}

TEST_CASE("the best validation, and how many followed it, continue across a resume") {
  const Scratch scratch;
  small_job(scratch.path(), "validation: {dataset: {samples: 16}, every_steps: 1}\n");
  // Nothing is learned, so the first validation stays the best one.
  const auto run = [&](int64_t steps, int patience, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words =
        resume_run_words({"optimizer={type: sgd, learning_rate: 1.0e-30}",
                          "train={steps: " + std::to_string(steps) + ", stop_when: {metric: loss, patience: " +
                              std::to_string(patience) + "}, checkpoint: {keep_best: loss, every_steps: 1000}}"});
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = trainctl_command(scratch.path(), words);
    INFO(result.out << result.err);
    CHECK(result.exit_code == kExitDone);
    return result.out;
  };
  run(3, 4);
  CHECK(checkpoints_in(file_of(scratch, 1, "checkpoints")) ==
        std::vector<std::string>{"step_00000001", "step_00000003"});
  const std::string resumed = run(20, 4, {"--resume"});
  CHECK(contains(resumed, "stopped after step 5: the validation loss has not improved on "));
  CHECK(contains(resumed, "since step 1 (train.stop_when.patience: 4)"));
  CHECK(checkpoints_in(file_of(scratch, 2, "checkpoints")) == std::vector<std::string>{"step_00000005"});
  CHECK(contains(run(20, 4, {"--resume"}), "stopped after step 5: the validation loss has not improved on "));
  CHECK(contains(run(20, 9, {"--resume"}), "stopped after step 10: "));
}

TEST_CASE("each validation with a new best value has a checkpoint, however soon it follows the one before") {
  const Scratch scratch;
  small_job(scratch.path(), "validation: {dataset: {samples: 16}, every_steps: 1}\n");
  const CommandResult result = trainctl_command(
      scratch.path(),
      resume_run_words({"train={steps: 30, checkpoint: {keep_best: loss, keep: 100, every_steps: 1000}}"}));
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == kExitDone);
  const std::vector<std::string> saved = checkpoints_in(file_of(scratch, 1, "checkpoints"));
  std::istringstream lines(slurp(file_of(scratch, 1, "metrics.jsonl")));
  double best = std::numeric_limits<double>::infinity();
  int improvements = 0;
  for (std::string text; std::getline(lines, text);) {
    const auto line = nlohmann::json::parse(text);
    if (line.value("kind", "") != "validation" || line["loss"].get<double>() >= best) continue;
    best = line["loss"].get<double>();
    ++improvements;
    CHECK(std::ranges::count(saved, trainctl::checkpoint_name(line["run_step"].get<int64_t>())) == 1);
  }
  CHECK(improvements > 3);
}

TEST_CASE("a run continues under another plan, on the samples that were next") {
  const Scratch scratch;
  small_job(scratch.path());
  REQUIRE(trainctl_command(scratch.path(), resume_run_words({train_steps(11, "every_steps: 5")})).exit_code ==
          kExitDone);
  REQUIRE(trainctl_command(scratch.path(),
                           resume_run_words({train_steps(24, "every_steps: 5"), "--resume", "launch.ranks=4",
                                             "parallel.optimizer_shard={level: 3}", "parallel.micro_batches=2"}))
              .exit_code == kExitDone);
  const Scratch whole;
  small_job(whole.path());
  REQUIRE(trainctl_command(whole.path(), resume_run_words({"train.steps=24"})).exit_code == kExitDone);
  std::istringstream moved(lines_after(scratch, 2, 0)), expected(lines_after(whole, 1, 11));
  std::string a, b;
  int lines = 0;
  for (; std::getline(moved, a) && std::getline(expected, b); ++lines) {
    const size_t loss = b.rfind(' ');
    CHECK(a.substr(0, loss) == b.substr(0, loss));
    CHECK(std::stod(a.substr(loss)) == doctest::Approx(std::stod(b.substr(loss))).epsilon(0.001));
  }
  CHECK(lines > 13);
}

TEST_CASE("configs/mnist_mlp.yaml continues after a failure, on its plan and on another, and its weights leave") {
  const std::string job = TRAINCTL_SOURCE_DIR "/configs/mnist_mlp.yaml";
  const Scratch whole, same, other;
  const CommandResult uninterrupted = trainctl_command(whole.path(), {"run", job});
  REQUIRE(uninterrupted.exit_code == kExitDone);
  const std::vector<std::string> expected = loss_lines(uninterrupted.out, 3);
  REQUIRE(expected.size() >= 8 * 44);
  setenv("TRAINCTL_TEST_FAULT", "5:100:exit9", 1);  // of 44 steps per epoch
  // On a busy machine a save during training may delay the next one by some steps.
  for (const Scratch* scratch : {&same, &other})
    CHECK(trainctl_command(scratch->path(), {"run", job, "train.checkpoint.async=false"}).exit_code == kExitRankFailed);
  unsetenv("TRAINCTL_TEST_FAULT");

  const CommandResult resumed = trainctl_command(same.path(), {"run", job, "--resume"});
  INFO(resumed.out << resumed.err);
  CHECK(resumed.exit_code == kExitDone);
  CHECK(contains(resumed.out, "resuming after step 88 "));
  CHECK(loss_lines(resumed.out, 1) == expected);

  const CommandResult moved = trainctl_command(other.path(), {"run", job, "--resume", "launch.ranks=6",
                                                              "parallel.stages=3", "parallel.optimizer_shard.level=3"});
  INFO(moved.out << moved.err);
  CHECK(moved.exit_code == kExitDone);
  CHECK(contains(moved.out, "resuming after step 88 "));
  const std::vector<std::string> lines = loss_lines(moved.out, 1);
  REQUIRE(lines.size() == expected.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t loss = expected[i].rfind(' ');
    CHECK(lines[i].substr(0, loss) == expected[i].substr(0, loss));
    CHECK(std::stod(lines[i].substr(loss)) == doctest::Approx(std::stod(expected[i].substr(loss))).epsilon(0.001));
  }

  CHECK(trainctl_command(same.path(), {"checkpoint", "export", "log_output/1", "-o", "model.safetensors"}).exit_code ==
        kExitDone);
  const CommandResult shown = trainctl_command(same.path(), {"checkpoint", "show", "model.safetensors"});
  INFO(shown.out << shown.err);
  CHECK(contains(shown.out, "step: 88"));
  CHECK(contains(shown.out, "layer3.weight"));
}
