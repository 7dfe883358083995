// Jobs that do not come from a regular file: standard input, pipes, FIFOs; and files that are not jobs.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/skip.h"

using namespace trainctl;

namespace {

/// A line of bash in the scratch folder, where $T is trainctl.
CommandResult bash(const Scratch& scratch, const std::string& line) {
  std::ofstream(scratch.path() + "/line.sh") << "cd " << scratch.path() << "\nT=" TRAINCTL_BINARY "\n"
                                             << "export XDG_RUNTIME_DIR=$PWD TMPDIR=$PWD\n"
                                             << line << "\n";
  const std::string command =
      "bash " + scratch.path() + "/line.sh >" + scratch.path() + "/out 2>" + scratch.path() + "/err";
  const int status = std::system(command.c_str());
  return {WEXITSTATUS(status), slurp(scratch.path() + "/out"), slurp(scratch.path() + "/err")};
}

bool has_descriptors() {
  const bool have = access("/dev/fd", R_OK) == 0;
  if (!have) skip_test("no /dev/fd: the shell has no process substitution");
  return have;
}

}  // namespace

TEST_CASE("every command that reads a job reads it from standard input for -") {
  const Scratch scratch;
  small_job(scratch.path());
  for (const char* command : {"check -", "plan -", "show graph -", "run - train.steps=2", "run - -d train.steps=2"}) {
    CAPTURE(command);
    const CommandResult result = bash(scratch, std::string("$T ") + command + " < job.yaml");
    CHECK(result.exit_code == kExitDone);
    CHECK(result.err.empty());
  }
  CHECK(contains(bash(scratch, "cat job.yaml | $T check -").out, "<stdin>: valid"));
  CHECK(bash(scratch, "$T check - launch.ranks=0 < job.yaml").exit_code == kExitSpec);
}

TEST_CASE("errors in a job from a stream show its line") {
  const Scratch scratch;
  const CommandResult result = bash(scratch, "printf 'name: a\\nlunch: {}\\n' | $T check -");
  CHECK(result.exit_code == kExitSpec);
  CHECK(contains(result.err, "<stdin>:2:1: lunch: unknown field 'lunch'"));
  CHECK(contains(result.err, "    lunch: {}\n    ^"));
  CHECK(contains(bash(scratch, "$T check - < /dev/null").err, "<stdin>:1:1: the job file is empty"));
}

TEST_CASE("relative paths of a job from a stream are relative to the current directory") {
  if (!has_descriptors()) return;
  const Scratch scratch;
  const std::string job = "printf 'command: [pwd]\\nworking_dir: sub\\n'";
  std::filesystem::create_directory(scratch.path() + "/sub");
  for (const std::string& line : {job + " | $T run -", "$T run <(" + job + ")", job + " | $T run /dev/stdin"}) {
    CAPTURE(line);
    const CommandResult result = bash(scratch, line);
    CHECK(result.exit_code == kExitDone);
    CHECK(contains(result.out, scratch.path() + "/sub\n"));
  }
}

TEST_CASE("a FIFO is read once a writer opens it, and refused if none does") {
  const Scratch scratch;
  small_job(scratch.path());
  REQUIRE(mkfifo((scratch.path() + "/pipe.yaml").c_str(), 0600) == 0);
  CHECK(bash(scratch, "cat job.yaml > pipe.yaml & $T check pipe.yaml").exit_code == kExitDone);
  const CommandResult alone = bash(scratch, "$T check pipe.yaml");
  CHECK(alone.exit_code == kExitSpec);
  CHECK(contains(alone.err, "pipe.yaml: cannot read the job file: it is a FIFO that no process writes to"));
  const CommandResult wrong = bash(scratch, "(echo 'seed: x' > pipe.yaml) & $T check pipe.yaml");
  CHECK(wrong.exit_code == kExitSpec);
  CHECK(contains(wrong.err, "    seed: x\n"));
}

TEST_CASE("a slow writer is awaited") {
  if (!has_descriptors()) return;
  const Scratch scratch;
  small_job(scratch.path());
  CHECK(bash(scratch, "$T check <(sleep 4; cat job.yaml)").exit_code == kExitDone);
}

TEST_CASE("a file that is not a job file is refused with the reason") {
  const Scratch scratch;
  small_job(scratch.path());
  const auto error = [&](const std::string& line) {
    const CommandResult result = bash(scratch, line);
    CHECK(result.exit_code == kExitSpec);
    return result.err;
  };
  CHECK(contains(error("$T check ''"), "cannot read the job file: its name is empty"));
  CHECK(contains(error("$T check ."), "it is a folder"));
  CHECK(contains(error("$T check ."), "./job.yaml"));
  CHECK(contains(error("$T check jop.yaml"), "did you mean 'job.yaml'?"));
  CHECK(contains(error("$T check $T"), "this control character is not allowed in a job file"));
  CHECK(contains(error("printf 'import torch\\nprint(1)\\n' > t.py; $T run t.py"), "command: [python3, t.py]"));
  CHECK(contains(error("$T run job.yaml t.py"), "name a program and its arguments in the job"));
  CHECK(contains(error("$T run job.yaml job.yaml"), "only one job file can be given, as the first argument"));
  CHECK(contains(error("$T run job.yaml train.epochs = 2"), "without spaces: train.epochs=VALUE"));
}

TEST_CASE("a job file that may not be read is refused") {
  if (geteuid() == 0) return skip_test("root may read every file");
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult result = bash(scratch, "chmod 0 job.yaml; $T check job.yaml");
  CHECK(result.exit_code == kExitSpec);
  CHECK(contains(result.err, "cannot read the job file: Permission denied"));
}
