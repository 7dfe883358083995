// Starts trainctl, and writes a job for it.
#include "tests/cli/command.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/jobs/jobs.h"
#include "tests/launcher/launcher_process.h"

namespace {

/// The scratch folder itself, also for commands that run in a folder inside it.
std::string registry_of(const std::string& directory) {
  const size_t begin = directory.find("trainctl-test-");
  return begin == std::string::npos ? directory : directory.substr(0, directory.find('/', begin));
}

void redirect(int fd, const char* path, int flags) {
  const int file = open(path, flags, 0666);
  dup2(file, fd);
  close(file);
}

}  // namespace

int start_trainctl(const std::string& directory, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {TRAINCTL_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return start_words(directory, std::move(words));
}

int start_words(const std::string& directory, std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // A test that waits for words of this process must not find those of an earlier one.
  for (const char* name : {"/out", "/err"}) std::ofstream emptied(directory + name);
  const pid_t tests = getpid(), pid = fork();
  if (pid != 0) return pid;
  die_with(tests);
  if (chdir(directory.c_str()) != 0) _exit(126);
  // Each test has its own registry: ps and stop must not see other tests' runs.
  const std::string registry = registry_of(directory);
  setenv("XDG_RUNTIME_DIR", registry.c_str(), 1);
  setenv("TMPDIR", registry.c_str(), 1);
  setenv("COLUMNS", "120", 1);  // lines that a test looks for are not wrapped
  redirect(0, "/dev/null", O_RDONLY);
  redirect(1, "out", O_WRONLY | O_CREAT | O_TRUNC);
  redirect(2, "err", O_WRONLY | O_CREAT | O_TRUNC);
  execvp(argv[0], argv.data());
  _exit(127);
}

CommandResult finish_trainctl(const std::string& directory, int pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), slurp(directory + "/out"),
          slurp(directory + "/err")};
}

CommandResult trainctl_command(const std::string& directory, const std::vector<std::string>& arguments) {
  return finish_trainctl(directory, start_trainctl(directory, arguments));
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string small_job(const std::string& directory, const std::string& more) {
  std::ofstream(directory + "/job.yaml") << trainctl::job_text("small") << more;
  return directory + "/job.yaml";
}

std::vector<int> workers_of(int launcher, int ranks) {
  std::vector<int> pids(static_cast<size_t>(ranks), -1);
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = slurp(entry.path() / "stat");
    const size_t end = stat.rfind(')');
    if (end == std::string::npos || std::atoi(stat.c_str() + std::min(stat.size(), end + 4)) != launcher) continue;
    std::string words = slurp(entry.path() / "cmdline");
    std::replace(words.begin(), words.end(), '\0', ' ');
    const size_t at = words.find("--rank ");
    if (words.find(" worker ") == std::string::npos || at == std::string::npos) continue;
    const int rank = std::atoi(words.c_str() + at + 7);
    if (rank >= 0 && rank < ranks) pids[static_cast<size_t>(rank)] = std::stoi(name);
  }
  return pids;
}
