// The live view on a terminal: a pseudo-terminal that the test reads.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/render/progress.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/skip.h"

using namespace trainctl;

namespace {

/// Both ends of a pseudo-terminal. The other end is opened by an ioctl and not by its name, which may be missing, or
/// may be another terminal's, where /dev/pts is not the file system that /dev/ptmx belongs to.
struct TerminalPair {
  int own = -1, programs = -1;
  std::string missing;  ///< why there is none; "" if there is one

  TerminalPair() : own(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (own < 0 || unlockpt(own) != 0) {
      missing = std::string("no pseudo-terminal can be opened (") + std::strerror(errno) + "); is /dev/pts mounted?";
      return;
    }
    programs = ioctl(own, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (programs < 0 || isatty(programs) == 0)
      missing = std::string("a pseudo-terminal has no other end (") + std::strerror(errno) + "); is /dev/pts mounted?";
  }
  TerminalPair(const TerminalPair&) = delete;
  TerminalPair& operator=(const TerminalPair&) = delete;
  ~TerminalPair() {
    for (const int fd : {own, programs})
      if (fd >= 0) close(fd);
  }
};

/// trainctl with a terminal of a given width as its stdout. Requires have_terminals().
class OnTerminal {
 public:
  OnTerminal(const Scratch& scratch, int columns, const std::vector<std::string>& words,
             const char* no_color = nullptr) {
    REQUIRE(pair_.missing.empty());
    resize(columns);
    std::vector<std::string> all = {TRAINCTL_BINARY};
    all.insert(all.end(), words.begin(), words.end());
    const pid_t tests = getpid();
    pid_ = fork();
    if (pid_ != 0) {
      close(std::exchange(pair_.programs, -1));  // so that reads end with the program
      return;
    }
    die_with(tests);
    for (int fd = 0; fd < 3; ++fd) dup2(pair_.programs, fd);
    setenv("TERM", "xterm", 1);
    setenv("XDG_RUNTIME_DIR", scratch.path().c_str(), 1);
    setenv("TMPDIR", scratch.path().c_str(), 1);
    unsetenv("NO_COLOR");
    if (no_color != nullptr) setenv("NO_COLOR", no_color, 1);
    std::vector<char*> argv;
    for (std::string& word : all) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (chdir(scratch.path().c_str()) == 0) execv(TRAINCTL_BINARY, argv.data());
    _exit(127);
  }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;
  ~OnTerminal() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
  }

  void resize(int columns) const {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    ioctl(pair_.own, TIOCSWINSZ, &size);
  }

  /// Reads until `part` has appeared or the process has ended.
  bool shows(const std::string& part) {
    while (text_.find(part) == std::string::npos) {
      pollfd ready{pair_.own, POLLIN, 0};
      if (poll(&ready, 1, 60000) <= 0) return false;
      char buffer[4096];
      const ssize_t got = read(pair_.own, buffer, sizeof buffer);
      if (got <= 0) return false;
      text_.append(buffer, static_cast<size_t>(got));
    }
    return true;
  }
  int finish() {
    shows("\1 never");
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WEXITSTATUS(status);
  }
  const std::string& text() const { return text_; }

 private:
  TerminalPair pair_;
  pid_t pid_ = -1;
  std::string text_;
};

/// Skips the test if there are no pseudo-terminals: /dev/pts is not mounted in a plain chroot and in some containers.
bool have_terminals() {
  const TerminalPair pair;
  if (!pair.missing.empty()) skip_test(pair.missing);
  return pair.missing.empty();
}

/// Three ranks that sleep until the file `end` is there.
void sleeping_job(const Scratch& scratch) {
  std::ofstream(scratch.path() + "/job.yaml")
      << "name: sleeps\ncommand: [sh, -c, 'while [ ! -e end ]; do sleep 0.02; done']\nlaunch: {ranks: 3}\n";
}

void wake_up(const Scratch& scratch) { std::ofstream(scratch.path() + "/end") << ""; }

}  // namespace

TEST_CASE("on a terminal the states of the ranks stay in the last line, colored, and disappear when the run ends") {
  if (!have_terminals()) return;
  const Scratch scratch;
  sleeping_job(scratch);
  OnTerminal run(scratch, 80, {"run", "job.yaml"});
  CHECK(run.shows("\033[36mranks 0-2 running\033[0m"));
  wake_up(scratch);
  CHECK(run.finish() == 0);
  CHECK(contains(run.text(), "\r\033[J"));
  CHECK(contains(run.text(), "\033[32mdone\033[0m after"));
}

TEST_CASE("NO_COLOR turns off colours, not the live view") {
  if (!have_terminals()) return;
  const Scratch scratch;
  sleeping_job(scratch);
  OnTerminal run(scratch, 80, {"run", "job.yaml"}, "1");
  CHECK(run.shows("ranks 0-2 running"));
  wake_up(scratch);
  CHECK(run.finish() == 0);
  CHECK_FALSE(contains(run.text(), "\033[3"));
}

TEST_CASE("the progress line is never wider than the window") {
  if (!have_terminals()) return;
  const Scratch scratch;
  sleeping_job(scratch);
  OnTerminal run(scratch, 14, {"run", "job.yaml"}, "1");
  CHECK(run.shows("ranks 0-2 …"));
  CHECK_FALSE(contains(run.text(), "running"));
  wake_up(scratch);
  CHECK(run.finish() == 0);
}

TEST_CASE("a line that a narrower window has wrapped is removed completely") {
  if (!have_terminals()) return;
  const Scratch scratch;
  sleeping_job(scratch);
  OnTerminal run(scratch, 80, {"run", "job.yaml"}, "1");
  CHECK(run.shows("ranks 0-2 running"));  // 17 columns
  run.resize(12);
  CHECK(run.shows("\033[1A\r\033[J"));
  CHECK(run.shows("ranks 0-…"));
  wake_up(scratch);
  CHECK(run.finish() == 0);
}
