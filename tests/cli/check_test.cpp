// trainctl check: what it refuses, and what it warns of.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/run/launch/script_check.h"
#include "engine/base/error.h"
#include "tests/bad_specs/bad_jobs.h"
#include "tests/cli/command.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

std::vector<fs::path> jobs_in(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(std::string(TRAINCTL_SOURCE_DIR "/") + folder))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

CommandResult both(const Scratch& scratch, const char* command, const fs::path& file,
                   const std::vector<std::string>& overrides) {
  std::vector<std::string> words = {command, file};
  words.insert(words.end(), overrides.begin(), overrides.end());
  return trainctl_command(scratch.path(), words);
}

/// An error of the command line names the command.
std::string of_check(std::string text) {
  const std::string plan = "trainctl plan";
  for (size_t at = 0; (at = text.find(plan, at)) != std::string::npos;) text.replace(at, plan.size(), "trainctl check");
  return text;
}

void write(const Scratch& scratch, const std::string& name, const std::string& text) {
  fs::create_directories((scratch.path() + "/" + name).substr(0, (scratch.path() + "/" + name).rfind('/')));
  std::ofstream(scratch.path() + "/" + name) << text;
}

CommandResult check_of(const Scratch& scratch, const std::string& job) {
  write(scratch, "job.yaml", job);
  return trainctl_command(scratch.path(), {"check", "job.yaml"});
}

}  // namespace

TEST_CASE("check refuses every job that plan refuses, with the same errors and exit code") {
  const Scratch scratch;
  int refused = 0, passed = 0;
  for (const char* folder : {"tests/bad_specs", "tests/bad_specs/plan", "tests/jobs", "configs"}) {
    for (const fs::path& file : jobs_in(folder)) {
      const std::vector<std::string> overrides = read_bad_job(file).overrides;
      const CommandResult plan = both(scratch, "plan", file, overrides),
                          check = both(scratch, "check", file, overrides);
      CAPTURE(file.filename().string());
      CHECK(check.exit_code == plan.exit_code);
      CHECK(check.err == of_check(plan.err));
      (plan.exit_code == kExitDone ? passed : refused) += 1;
    }
  }
  CHECK(refused > 150);
  CHECK(passed > 25);
}

TEST_CASE("check refuses a job that needs more than its max_memory, as plan does") {
  const Scratch scratch;
  small_job(scratch.path());
  for (const char* command : {"check", "plan"}) {
    const CommandResult result = trainctl_command(scratch.path(), {command, "job.yaml", "parallel.max_memory=1KiB"});
    CHECK(result.exit_code == kExitSpec);
    CHECK(contains(result.err, ", but parallel.max_memory is 1.0 KiB"));
    CHECK_FALSE(contains(result.err, "\\x0a"));
  }
}

TEST_CASE("a warning has a position, and does not change the exit code") {
  const Scratch scratch;
  write(scratch, "job.yaml", job_text("small"));
  for (const char* command : {"check", "plan", "run"}) {
    const CommandResult result = trainctl_command(scratch.path(), {command, "job.yaml", "loss=null"});
    CAPTURE(command);
    CHECK(result.exit_code == kExitDone);
    CHECK(contains(result.err, "job.yaml:8:12: warning: optimizer: there is no loss"));
    CHECK(contains(result.err, "^ add a loss, e.g. loss: mae"));
  }
}

TEST_CASE("labels and tokens that are out of range are refused before any rank starts") {
  const Scratch scratch;
  write(scratch, "job.yaml", job_text("language"));
  for (const char* command : {"check", "run"}) {
    const CommandResult result = trainctl_command(scratch.path(), {command, "job.yaml", "dataset.classes=25"});
    CAPTURE(command);
    CHECK(result.exit_code == kExitSpec);
    CHECK(contains(result.err, "layer 'embed' (embedding) supports 0 to 23"));
    CHECK(contains(result.err, "the loss (softmax_cross_entropy) supports 0 to 23"));
    CHECK(contains(result.err, "2 errors"));
  }
  CHECK_FALSE(fs::exists(scratch.path() + "/log_output"));
}

TEST_CASE("a script that does not exist is refused at its word") {
  const Scratch scratch;
  const CommandResult result = check_of(scratch, "command: [python3, -u, train.py, --lr, 0.1]\n");
  CHECK(result.exit_code == kExitSpec);
  CHECK(contains(result.err, "job.yaml:1:24: command[2]: the script " + scratch.path() + "/train.py does not exist"));
  CHECK(contains(result.err, "working_dir"));
  CHECK(trainctl_command(scratch.path(), {"plan", "job.yaml"}).exit_code == kExitSpec);
  CHECK(trainctl_command(scratch.path(), {"run", "job.yaml"}).exit_code == kExitSpec);
  CHECK_FALSE(fs::exists(scratch.path() + "/log_output"));
}

TEST_CASE("a script is looked for in working_dir, and the nearest name is offered") {
  const Scratch scratch;
  write(scratch, "src/train.py", "");
  CHECK(check_of(scratch, "command: [python3, train.py]\nworking_dir: src\n").exit_code == kExitDone);
  CHECK(check_of(scratch, "command: [python3, src/train.py]\n").exit_code == kExitDone);
  CHECK(check_of(scratch, "command: [python3, train.py]\n").exit_code == kExitSpec);
  const CommandResult near = check_of(scratch, "command: [python3, src/trian.py]\n");
  CHECK(near.exit_code == kExitSpec);
  CHECK(contains(near.err, "did you mean 'train.py'?"));
}

TEST_CASE("only a word that is certainly a script is taken for one") {
  using Words = std::vector<std::string>;
  const auto script = [](const Words& command) { return script_word(command).value_or(0); };
  CHECK(script({"python3", "train.py"}) == 1);
  CHECK(script({"/usr/bin/python3.11", "-u", "train.py"}) == 2);
  CHECK(script({"python3", "-W", "ignore.py", "train.py"}) == 3);
  CHECK(script({"python", "-Wignore", "-OO", "--", "train.py"}) == 4);
  CHECK(script({"bash", "-eu", "-o", "pipefail", "run.sh", "other.sh"}) == 4);
  CHECK(script({"sh", "+x", "run.sh"}) == 2);
  CHECK(script({"node", "--require", "setup.js", "main.mjs"}) == 3);
  for (const Words& none : std::vector<Words>{{"python3"},
                                              {"python3", "-m", "pkg.train", "x.py"},
                                              {"python3", "-um", "pkg.py"},
                                              {"python3", "-c", "import x.py"},
                                              {"python3", "-"},
                                              {"python3", "--"},
                                              {"python3", "train"},
                                              {"python3", "--unknown", "x.py", "train.py"},
                                              {"sh", "-c", "./run.sh"},
                                              {"bash", "-ec", "run.sh"},
                                              {"bash", "-s", "run.sh"},
                                              {"torchrun", "train.py"},
                                              {"./train.py", "other.py"},
                                              {"echo", "train.py"}})
    CHECK(script(none) == 0);
}
