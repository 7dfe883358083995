// Limits of the machine are errors of the environment, with the limit's name: never a bug of trainctl, never a crash.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/skip.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

CommandResult shell(const Scratch& scratch, const std::string& before, const std::string& arguments) {
  const std::vector<std::string> words = {"bash", "-c", before + "; exec " TRAINCTL_BINARY " " + arguments};
  return finish_trainctl(scratch.path(), start_words(scratch.path(), words));
}

void check_is_no_bug(const CommandResult& result) {
  CAPTURE(result.exit_code);
  CAPTURE(result.err);
  CHECK((result.exit_code == kExitDone || result.exit_code == kExitEnv || result.exit_code == kExitRankFailed));
  CHECK(!contains(result.err, "bug"));
}

/// A run that fails before its ranks start leaves no folder; another one's folder says how it ended.
void check_is_recorded_or_nothing(const Scratch& scratch) {
  for (const int run : list_runs(scratch.path() + "/log_output")) {
    const RunDirectory directory(scratch.path() + "/log_output", run);
    CAPTURE(directory.path());
    CHECK(state_of(directory) != RunState::lost);
    CHECK((state_of(directory) == RunState::done || !slurp(directory.file("error.json")).empty()));
  }
}

}  // namespace

TEST_CASE("a limit of processes (ulimit -u) is named, at whichever process or thread a run meets it") {
  if (getuid() != 0)
    return skip_test("needs root: the limit counts all processes of a user, so the test takes another");
  const Scratch scratch;
  small_job(scratch.path(), "parallel: {mode: data_parallel}\nlaunch: {ranks: 2, device: cpu}\n");
  fs::permissions(scratch.path(), fs::perms::all);
  int named = 0;
  for (const int limit : {1, 2, 3, 5, 7, 9, 12}) {
    CAPTURE(limit);
    const std::string script = "ulimit -u " + std::to_string(limit) + "; exec " TRAINCTL_BINARY " run job.yaml";
    const CommandResult result =
        finish_trainctl(scratch.path(), start_words(scratch.path(), {"setpriv", "--reuid=12347", "--regid=12347",
                                                                     "--clear-groups", "bash", "-c", script}));
    check_is_no_bug(result);
    check_is_recorded_or_nothing(scratch);
    if (result.exit_code == kExitEnv) named += contains(result.err, "ulimit -u") ? 1 : 0;
  }
  CHECK(named > 0);
}

TEST_CASE("a limit of file sizes (ulimit -f) is an error of the machine for every command, and no SIGXFSZ") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult run = shell(scratch, "ulimit -f 1", "run job.yaml");
  CHECK(run.exit_code == kExitEnv);
  CHECK(contains(run.err, "ulimit -f"));
  CHECK(list_runs(scratch.path() + "/log_output").empty());
  const CommandResult init = shell(scratch, "ulimit -f 1", "init mlp -o init.yaml");
  CHECK(init.exit_code == kExitEnv);
  CHECK(contains(init.err, "ulimit -f"));
  CHECK(!fs::exists(scratch.path() + "/init.yaml"));
  const CommandResult man = shell(scratch, "ulimit -f 1", "man -o man");
  CHECK(man.exit_code == kExitEnv);
  const CommandResult plan = shell(scratch, "ulimit -f 0", "plan job.yaml --json > plan.json");
  CHECK(plan.exit_code == kExitEnv);
}

TEST_CASE("a limit of address space (ulimit -v) is no bug, at whichever allocation or thread a run meets it") {
  const Scratch scratch;
  small_job(scratch.path(), "launch: {ranks: 1, device: cpu}\n");
  for (int limit = 200'000; limit <= 320'000; limit += 10'000) {
    CAPTURE(limit);
    const std::string before = "ulimit -v " + std::to_string(limit);
    if (shell(scratch, before, "--version").exit_code != kExitDone) continue;  // its libraries need more
    check_is_no_bug(shell(scratch, before, "run job.yaml"));
  }
}

TEST_CASE("a limit of open files (ulimit -n) is an error of the machine") {
  const Scratch scratch;
  small_job(scratch.path());
  for (const int limit : {4, 6, 8, 10, 12, 16, 20, 24}) {
    CAPTURE(limit);
    const CommandResult result = shell(scratch, "ulimit -n " + std::to_string(limit), "run job.yaml");
    if (!contains(result.err, "error while loading shared libraries")) check_is_no_bug(result);  // main() has begun
    check_is_recorded_or_nothing(scratch);
  }
}

TEST_CASE("where /proc is missing, a run says so before it starts") {
  if (getuid() != 0) return skip_test("needs root: it unmounts /proc in a namespace of its own");
  const Scratch scratch;
  small_job(scratch.path());
  for (const std::string& command : {std::string("run job.yaml"), std::string("sweep job.yaml seed=1,2")}) {
    const std::string script = "umount -l /proc && exec " TRAINCTL_BINARY " " + command;
    const CommandResult result =
        finish_trainctl(scratch.path(), start_words(scratch.path(), {"unshare", "-m", "sh", "-c", script}));
    if (contains(result.err, "unshare")) return skip_test(result.err);
    CHECK(result.exit_code == kExitEnv);
    CHECK(contains(result.err, "mount -t proc"));
  }
}

TEST_CASE("a folder whose name is not UTF-8, or has a newline, is refused at once, with its name") {
  const Scratch scratch;
  for (const std::string& name : {std::string("caf\xe9"), std::string("two\nlines")}) {
    const std::string folder = scratch.path() + "/" + name;
    fs::create_directory(folder);
    small_job(folder);
    std::ofstream(folder + "/command.yaml") << "command: [echo, hi]\n";
    for (const char* command : {"check", "plan", "run"}) {
      CAPTURE(command);
      const CommandResult result = trainctl_command(folder, {command, "job.yaml"});
      CHECK(result.exit_code == kExitEnv);
      CHECK(contains(result.err, name[0] == 'c' ? "caf\\xe9" : "two\\x0alines"));
      CHECK(contains(result.err, "rename"));
    }
    CHECK(trainctl_command(folder, {"run", "command.yaml"}).exit_code == kExitEnv);
    CHECK(!fs::exists(folder + "/log_output"));
    // From another folder too.
    CHECK(trainctl_command(scratch.path(), {"check", folder + "/job.yaml"}).exit_code == kExitEnv);
  }
}
