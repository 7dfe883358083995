// The processes that give the numbers of a run to the trackers of `track`, one per tracker.
#include "cli/run/launch/trackers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "launcher/clusters/command.h"
#include "launcher/own_program.h"
#include "launcher/quiet_fork.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kTrackerLook = std::chrono::milliseconds(20);
constexpr auto kMoment = std::chrono::seconds(2);
/// The exit code of `env` for a program that does not exist.
constexpr int kNoProgram = 127;
/// Prefix of the line in a tracker's output that says where the numbers are.
constexpr std::string_view kPlaceLine = "tracked: ";

std::string python() {
  const char* chosen = std::getenv("TRAINCTL_PYTHON");
  return chosen != nullptr && *chosen != '\0' ? chosen : "python3";
}

/// The folder that has the Python package trainctl of this program; empty if only Python itself may know one.
std::string package_folder() {
  const fs::path program = fs::path(own_program()).parent_path();
  for (const char* place : {"../share/trainctl/python",  // PREFIX/bin
                            "../../..",                  // a wheel: site-packages/trainctl/program/bin
                            "../../../python"}) {        // a build tree: build/release/bin
    std::error_code error;
    const fs::path folder = (program / place).lexically_normal();
    if (fs::exists(folder / "trainctl" / "track.py", error)) return folder.string();
  }
  return "";
}

/// `python3 -m trainctl.track WORDS`, with this program's package.
std::vector<std::string> track_words(std::vector<std::string> words) {
  std::vector<std::string> all = {"env"};
  if (const std::string folder = package_folder(); !folder.empty()) {
    const char* path = std::getenv("PYTHONPATH");
    all.push_back("PYTHONPATH=" + folder + (path != nullptr && *path != '\0' ? ":" + std::string(path) : ""));
  }
  all.insert(all.end(), {python(), "-m", "trainctl.track"});
  for (std::string& word : words) all.push_back(std::move(word));
  return all;
}

/// The tracker as an argument of trainctl.track.
std::string word_of(const TrackerSpec& spec) { return spec.type == "command" ? "command: " + spec.command : spec.type; }

std::string job_folder(const JobSpec& spec) {
  std::error_code error;
  return fs::absolute(fs::path(spec.file).parent_path() / ".", error).lexically_normal().string();
}

std::string last_line(const std::string& text) {
  std::string last;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (const std::string line = text.substr(at, end - at); line.find_first_not_of(" \t\r") != std::string::npos)
      last = line;
    at = end + 1;
  }
  return last;
}

/// Returns why a tracker cannot start on this host; nothing if it can.
std::optional<Diagnostic> obstacle(const JobSpec& job, const TrackerSpec& tracker) {
  clusters::CommandEnd end;
  try {
    end = clusters::run_command(track_words({"--check", "--folder", job_folder(job), word_of(tracker)}));
  } catch (const EnvError& error) {
    end = {.code = kNoProgram, .out = "", .err = error.what()};
  }
  if (end.code == 0) return {};
  Diagnostic problem{job.position(tracker.path), tracker.path, "", ""};
  if (end.code == kNoProgram) {
    problem.message = tracker.type + " needs Python, and " + python() + " cannot be started";
    problem.hint = "install Python 3, or set TRAINCTL_PYTHON to the path of one";
  } else if (!end.out.empty()) {  // two lines of trainctl.track: the cause and the remedy
    problem.message = end.out.substr(0, end.out.find('\n'));
    problem.hint = last_line(end.out);
  } else if (end.err.find("No module named") != std::string::npos) {
    problem.message = tracker.type + " needs the Python package trainctl, which " + python() + " does not have";
    problem.hint = "install the wheel that ./bootstrap package makes: " + python() + " -m pip install trainctl-*.whl";
  } else {
    problem.message = tracker.type + " cannot start: " + last_line(end.err);
    problem.hint = "try it: " + python() + " -m trainctl.track --check '" + word_of(tracker) + "'";
  }
  problem.hint += "; with required: false the job runs without it";
  return problem;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Redirects the standard streams of a child. Only async-signal-safe calls.
bool set_streams(const char* log) {
  const int in = open("/dev/null", O_RDONLY);
  const int out = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
  return in >= 0 && out >= 0 && dup2(in, 0) >= 0 && dup2(out, 1) >= 0 && dup2(out, 2) >= 0;
}

}  // namespace

std::vector<TrackerSpec> startable_trackers(const JobSpec& spec, std::vector<Diagnostic>& warnings) {
  std::vector<TrackerSpec> startable;
  std::vector<Diagnostic> errors;
  for (const TrackerSpec& tracker : spec.track) {
    if (tracker.type == "tensorboard") continue;
    if (std::optional<Diagnostic> problem = obstacle(spec, tracker))
      (tracker.required ? errors : warnings).push_back(std::move(*problem));
    else
      startable.push_back(tracker);
  }
  if (!errors.empty()) throw SpecError(std::move(errors));
  return startable;
}

TrackerProcesses::TrackerProcesses(const JobSpec& spec, std::vector<TrackerSpec> trackers) : folder_(job_folder(spec)) {
  std::map<std::string, int> counts;
  for (TrackerSpec& tracker : trackers) {
    const int count = ++counts[tracker.type];
    std::string name = tracker.type + (count == 1 ? "" : "." + std::to_string(count));
    processes_.push_back({.spec = std::move(tracker), .name = std::move(name), .log = {}});
  }
}

TrackerProcesses::~TrackerProcesses() {
  for (const Process& process : processes_) {
    if (process.pid < 0) continue;
    kill(-process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
  }
}

void TrackerProcesses::start(const RunDirectory& directory) {
  if (std::exchange(is_started_, true)) return;
  std::error_code error;
  run_folder_ = fs::absolute(directory.path(), error).string();
  for (Process& process : processes_) start_one(process, directory);
}

void TrackerProcesses::start_one(Process& process, const RunDirectory& directory) {
  process.log = directory.file("track." + process.name + ".log");
  std::error_code error;
  const std::string log = fs::absolute(process.log, error).string();
  std::vector<std::string> words = {run_folder_, word_of(process.spec)};
  if (!process.spec.to.empty()) words.insert(words.end(), {"--to", process.spec.to});
  words = track_words(std::move(words));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  process.pid = quiet_fork();
  if (process.pid != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // a launcher that is killed leaves no tracker behind
  sigset_t none;
  sigemptyset(&none);
  if (set_streams(log.c_str()) && chdir(folder_.c_str()) == 0) {
    close_all_but({0, 1, 2});
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1}) signal(number, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
    execvp(argv[0], argv.data());
  }
  _exit(kNoProgram);
}

std::string TrackerProcesses::end_of(const Process& process, int status) const {
  const std::string output = read_text(process.log);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    const size_t place = output.rfind(kPlaceLine);
    if (place == std::string::npos || (place > 0 && output[place - 1] != '\n')) return "";
    return process.name + ": " +
           last_line(output.substr(place + kPlaceLine.size(), output.find('\n', place) - place - kPlaceLine.size()));
  }
  const std::string how =
      WIFEXITED(status) ? fmt::format("exit code {}", WEXITSTATUS(status)) : fmt::format("signal {}", WTERMSIG(status));
  const std::string last = last_line(output);
  return fmt::format("warning: tracker {} ended with {}{}; its output is in {}", process.name, how,
                     last.empty() ? "" : ": " + last, process.log);
}

std::vector<std::string> TrackerProcesses::news() {
  std::vector<std::string> lines;
  for (Process& process : processes_) {
    int status = 0;
    if (process.pid < 0 || waitpid(process.pid, &status, WNOHANG) != process.pid) continue;
    kill(-process.pid, SIGKILL);  // processes that it has left behind
    process.pid = -1;
    if (std::string line = end_of(process, status); !line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> TrackerProcesses::names_of_running() const {
  std::vector<std::string> names;
  for (const Process& process : processes_)
    if (process.pid > 0) names.push_back(process.name);
  return names;
}

std::vector<std::string> TrackerProcesses::finish(const std::function<bool()>& is_hurried,
                                                  const std::function<void(const std::string&)>& notice) {
  const auto begin = Clock::now();
  bool is_announced = false;
  std::vector<std::string> lines = news();
  while (!names_of_running().empty() && !is_hurried() &&
         Clock::now() - begin < std::chrono::duration<double>(kPatienceSeconds)) {
    if (!is_announced && Clock::now() - begin > kMoment) {
      is_announced = true;
      notice(fmt::format("waiting for {}, at most {:.0f} s; Ctrl-C twice ends the wait", join(names_of_running()),
                         kPatienceSeconds));
    }
    std::this_thread::sleep_for(kTrackerLook);
    for (std::string& line : news()) lines.push_back(std::move(line));
  }
  for (Process& process : processes_) {
    if (process.pid < 0) continue;
    kill(-process.pid, SIGKILL);
    waitpid(std::exchange(process.pid, -1), nullptr, 0);
    lines.push_back(fmt::format(
        "warning: tracker {} did not finish in time; to copy the run again: python3 -m trainctl.track {} '{}'",
        process.name, run_folder_, word_of(process.spec)));
  }
  return lines;
}

}  // namespace trainctl
