// The display of a run: its view on the terminal, launcher.log if it is detached, and its entry in the registry of
// runs.
#include "cli/run/launch/run_display.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/spec/parse.h"

namespace trainctl {
namespace {

constexpr auto kPublish = std::chrono::milliseconds(500);

std::unique_ptr<LauncherLog> open_log(const Background* background, const RunDirectory& directory) {
  return background == nullptr ? nullptr : std::make_unique<LauncherLog>(directory.file("launcher.log"));
}

}  // namespace

RunDisplay::RunDisplay(const RunDirectory& directory, RunDisplayOptions options)
    : directory_(directory),
      shown_(std::move(options.shown)),
      background_(options.background),
      log_(open_log(background_, directory)),
      view_(options.make_observer(log_ ? log_->fd() : STDOUT_FILENO)) {}

void RunDisplay::begin(const JobSpec& spec, const std::string& device, int processes) {
  namespace fs = std::filesystem;
  view_->begin(spec.name, processes_text(spec.launch.ranks, spec.servers()), directory_, device);
  RegisteredRun entry;
  entry.run = directory_.run();
  entry.name = spec.name;
  entry.log_dir = fs::absolute(spec.launch.log_dir).lexically_normal();
  entry.job = spec.file == kStdinName ? spec.file : fs::absolute(spec.file).lexically_normal().string();
  entry.launcher = getpid();
  entry.ranks = processes;
  entry.started = wall_seconds();
  try {
    registration_.emplace(entry);
  } catch (const EnvError& error) {
    view_->notice(std::string(error.what()) + "; trainctl ps will not list this run");
  }
}

void RunDisplay::line(int rank, std::string_view line, bool is_program) {
  const bool is_shown = std::binary_search(shown_.begin(), shown_.end(), rank);
  if (rank == 0) view_->listen(line, (is_shown && background_ == nullptr) || is_program);
  // The logs of a detached run contain all lines and are rotated; launcher.log is not.
  if (background_ != nullptr || !is_shown) return;
  if (shown_.size() == 1)
    view_->line(line);
  else
    view_->line_of(rank, line);
}

void RunDisplay::let_go(const JobSpec& spec) {
  const std::string number = std::to_string(directory_.run());
  const std::string where =
      spec.launch.log_dir == LaunchSpec{}.log_dir ? number : number + " --log-dir " + spec.launch.log_dir;
  background_->let_go(spec.name + ": run " + number + " started, " + processes_text(spec.launch.ranks, spec.servers()) +
                          ", logs in " + directory_.path() + "\n  trainctl attach " + where + "\n  trainctl logs " +
                          where + " --follow\n  trainctl stop " + where + "\n",
                      log_->fd());
}

void RunDisplay::update(const std::function<LiveStatus()>& status) {
  const bool view_due = view_->tick();
  const bool publish_due = registration_ && Clock::now() - published_ >= kPublish;
  if (!view_due && !publish_due) return;
  const LiveStatus now = status();
  if (view_due) view_->update(now);
  if (!publish_due) return;
  published_ = Clock::now();
  registration_->publish(now);
}

void RunDisplay::failure(const std::string& text) {
  view_->failure(text);
  if (waits_for_start() && write(log_->fd(), text.data(), text.size()) < 0) {
    // The failure was already reported on the terminal.
  }
}

void RunDisplay::flush(double seconds) const {
  if (log_) log_->flush(seconds);
}

}  // namespace trainctl
