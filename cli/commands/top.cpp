// trainctl top: shows the resource usage of the ranks of all runs on this host, repeatedly.
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/find_run.h"
#include "cli/render/terminal.h"
#include "cli/top/top_view.h"
#include "engine/base/error.h"
#include "launcher/log_selection.h"
#include "launcher/registry.h"
#include "launcher/signals.h"

namespace trainctl {
namespace {

using Clock = std::chrono::steady_clock;

struct TopArguments {
  bool once = false;
  double every = 1;  ///< seconds
};

volatile sig_atomic_t top_interrupted = 0;

/// State of each rank, from the groups of a status.
std::vector<std::string> doing_of(const LiveStatus& status, int ranks) {
  std::vector<std::string> doing(static_cast<size_t>(ranks));
  for (const RankGroup& group : status.ranks) {
    if (group.ranks.starts_with("server")) continue;  // pids are not ordered by server number
    for (const int rank : parse_ranks(group.ranks))
      if (rank < ranks) doing[static_cast<size_t>(rank)] = group.doing;
  }
  return doing;
}

/// Samples the runs. It keeps the last sample, since CPU usage is the difference between two samples.
class Watch {
 public:
  std::vector<RunUsage> look() {
    const Clock::time_point now = Clock::now();
    const std::map<int, ProcessUsage> usage = usage_by_group();
    const double seconds = std::chrono::duration<double>(now - last_time_).count();
    std::vector<RunUsage> runs;
    for (const RegisteredRun& run : running_runs()) runs.push_back(usage_of(run, usage, seconds));
    last_ = usage;
    last_time_ = now;
    return runs;
  }

 private:
  RunUsage usage_of(const RegisteredRun& run, const std::map<int, ProcessUsage>& usage, double seconds) {
    RunUsage of_run{name_of(run), live_status(run).value_or(LiveStatus{}), {}};
    const LiveStatus& status = of_run.status;
    const std::vector<std::string> doing = doing_of(status, run.ranks);
    for (int rank = 0; rank < run.ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      RankUsage row{.rank = rank, .doing = doing[at]};
      const int pid = at < status.pids.size() ? status.pids[at] : 0;
      if (const auto found = usage.find(pid); pid > 0 && found != usage.end()) {
        row.resident_bytes = found->second.resident_bytes;
        if (const auto before = last_.find(pid); before != last_.end() && seconds > 0)
          row.cores = std::max(0.0, found->second.cpu_seconds - before->second.cpu_seconds) / seconds;
      }
      if (at < status.gpus.size()) {
        row.gpu = status.gpus[at];
        row.gpu_load = load_of(*row.gpu);
      }
      of_run.ranks.push_back(std::move(row));
    }
    return of_run;
  }

  std::optional<CudaLoad> load_of(int gpu) {
    try {
      if (!monitor_) monitor_.emplace();
      return monitor_->load(gpu);
    } catch (const EnvError&) {
      return {};
    }
  }

  std::map<int, ProcessUsage> last_;
  Clock::time_point last_time_;
  std::optional<CudaMonitor> monitor_;
};

/// Switches to the terminal's alternate screen, without a cursor, during its lifetime.
class Screen {
 public:
  Screen() { put("\033[?1049h\033[?25l"); }
  ~Screen() { put("\033[?25h\033[?1049l"); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Overwrites the previous text, so that the screen does not flicker.
  void show(const std::string& text) const {
    std::string lines = "\033[H";
    for (const char c : text) lines += c == '\n' ? std::string("\033[K\n") : std::string(1, c);
    put(lines + "\033[J");
  }

 private:
  static void put(const std::string& text) { std::cout << text << std::flush; }
};

size_t terminal_height() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 ? size.ws_row - 1 : 23;
}

void pause_for(double seconds) { poll(nullptr, 0, static_cast<int>(seconds * 1000)); }

int top(const TopArguments& options) {
  constexpr double kFirstLook = 0.3;
  Watch watch;
  watch.look();
  pause_for(kFirstLook);
  if (options.once || !can_redraw(STDOUT_FILENO)) {
    const size_t width = is_terminal(STDOUT_FILENO) ? static_cast<size_t>(terminal_width(STDOUT_FILENO)) : 0;
    std::cout << top_text(host_usage(), watch.look(), width, 0);
    return kExitDone;
  }
  handle_signals({SIGINT, SIGTERM, SIGHUP}, [](int) { top_interrupted = 1; });
  const Screen screen;
  while (top_interrupted == 0) {
    screen.show(
        top_text(host_usage(), watch.look(), static_cast<size_t>(terminal_width(STDOUT_FILENO)), terminal_height()));
    pause_for(options.every);
  }
  return kExitDone;
}

}  // namespace

void add_top_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<TopArguments>();
  auto* command = app.add_subcommand("top", "Watch the resource usage of the ranks of all runs on this host");
  command->add_flag("--once", options->once, "Print once and exit; the default without a terminal");
  command->add_option("--every", options->every, "Seconds between updates")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->footer(
      R"(cpu: 100% is one core, including processes that the rank started. memory: resident memory, including shared memory.
gpu columns: usage by all processes. Ctrl-C ends the view; the runs continue.

Examples:
  trainctl top
  trainctl top --once)");
  command->callback([&chosen, options] { chosen = [options] { return top(*options); }; });
}

}  // namespace trainctl
