// trainctl attach: the live view of a run that another terminal, or none, started.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/commands/commands.h"
#include "cli/commands/find_run.h"
#include "cli/render/run_view.h"
#include "engine/base/error.h"
#include "launcher/log_reader.h"
#include "launcher/run_directory.h"
#include "launcher/spawn.h"

namespace trainctl {
namespace {

constexpr auto kPause = std::chrono::milliseconds(50);
constexpr int64_t kLastLines = 10;

struct Options {
  RunArguments which;
  int rank = 0;
};

volatile sig_atomic_t interrupted = 0;

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, false);
}

/// What the launcher wrote last, said as it said it.
int say_how_it_ended(RunView& view, const RunDirectory& directory) {
  const nlohmann::json outcome = read_json(directory.file("outcome.json"));
  if (!outcome.is_object() || !outcome.contains("exit_code")) {
    view.end({"lost: its launcher was killed,", 0, false}, directory);
    return kExitRankFailed;
  }
  const int code = outcome.value("exit_code", 0);
  const std::string ending = code == 0 ? "done" : code > 128 ? "stopped by " + signal_name(code - 128) : "failed";
  view.end({ending, outcome.value("seconds", 0.0), code == 0}, directory);
  const nlohmann::json error = read_json(directory.file("error.json"));
  if (code == kExitRankFailed && error.is_object()) std::cerr << error.value("report", "") << std::flush;
  return code;
}

int follow(const RegisteredRun& run, int rank) {
  const RunDirectory directory(short_path(run.log_dir), run.run);
  LogFile log(directory.rank_file(rank, "stdout"));
  log.skip_to_last(kLastLines);
  RunView view(STDOUT_FILENO);
  view.begin(run.name, run.ranks, directory);
  const auto show = [&](std::string_view line) { view.line(line); };
  for (;;) {
    const bool runs = still_runs(run);
    const bool more = log.read(show);
    if (interrupted != 0) {
      view.notice("detached; " + name_of(run) + " goes on");
      view.finish();
      return kExitDone;
    }
    if (view.tick()) view.update(live_status(run).value_or(LiveStatus{}));
    if (!runs && !more) break;
    if (!more) std::this_thread::sleep_for(kPause);
  }
  log.finish(show);
  return say_how_it_ended(view, directory);
}

int attach(const Options& options) {
  const RegisteredRun run = options.which.find_running();
  if (options.rank >= run.ranks)
    throw SpecError({}, "--rank", "there is no rank " + std::to_string(options.rank),
                    name_of(run) + " has ranks 0 to " + std::to_string(run.ranks - 1));
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &action, nullptr);
  return follow(run, options.rank);
}

}  // namespace

void add_attach_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("attach", "Watch a run that was started elsewhere");
  options->which.add_to(*command, "The number of the run");
  command->add_option("--rank", options->rank, "Whose lines are shown")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->footer(
      R"(Shows the progress of the run and one rank's lines until it ends; the exit code is then the run's. Ctrl-C
detaches, and the run goes on.

Examples:
  trainctl run job.yaml --detach && trainctl attach
  trainctl attach 3 --rank 5)");
  command->callback([&chosen, options] { chosen = [options] { return attach(*options); }; });
}

}  // namespace trainctl
