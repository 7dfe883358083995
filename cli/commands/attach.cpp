// trainctl attach: shows the live view of a run that was detached or started in another terminal.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "cli/commands/commands.h"
#include "cli/commands/find_run.h"
#include "cli/render/run_view.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "launcher/log_stream.h"
#include "launcher/run_directory.h"
#include "launcher/signals.h"

namespace trainctl {
namespace {

constexpr auto kAttachPause = std::chrono::milliseconds(50);
constexpr int64_t kLastLines = 10;

struct AttachArguments {
  RunArguments which;
  int rank = 0;
};

volatile sig_atomic_t attach_interrupted = 0;

/// Prints how the run ended, as its launcher would.
int report_how_it_ended(RunView& view, const RunDirectory& directory) {
  const std::optional<RunEnd> end = read_run_end(directory);
  if (!end) {
    view.end({"lost: its launcher was killed", 0, kExitRankFailed}, directory);
    return kExitRankFailed;
  }
  view.end(*end, directory);
  if (end->exit_code == kExitRankFailed) std::cerr << terminal_text(end->failure) << std::flush;
  return end->exit_code;
}

/// The lines of one rank's stdout.
class RankLines {
 public:
  RankLines(const RunDirectory& directory, int rank)
      : rank_(rank), log_(LogFiles{directory.rank_path(rank), "stdout"}) {
    log_.skip_to_last(kLastLines);
  }
  /// Returns whether there was any output.
  bool read(bool grows, RunView& view) {
    bool any = false;
    while (const std::optional<LogBlock> block = log_.next(grows)) {
      any = true;
      if (block->kind != LogBlock::Kind::lines) continue;
      std::string_view text = block->text;
      while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        if (rank_ == 0) view.listen(text.substr(0, end), true);
        view.line(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
      }
    }
    return any;
  }

 private:
  const int rank_;
  LogStream log_;
};

int follow(const RegisteredRun& run, int rank) {
  const RunDirectory directory(short_path(run.log_dir), run.run);
  RankLines lines(directory, rank);
  RunView view(STDOUT_FILENO);
  const int workers = std::min(run.ranks, directory.names().workers);
  view.begin(run.name, processes_text(workers, run.ranks - workers), directory, "");
  for (;;) {
    const bool runs = still_runs(run);
    const bool more = lines.read(runs, view);
    if (attach_interrupted != 0) {
      view.notice("detached; " + name_of(run) + " continues");
      view.finish();
      return kExitDone;
    }
    if (view.tick()) view.update(live_status(run).value_or(LiveStatus{}));
    if (!runs && !more) return report_how_it_ended(view, directory);
    if (!more) std::this_thread::sleep_for(kAttachPause);
  }
}

int attach(const AttachArguments& options) {
  const RegisteredRun run = options.which.find_running();
  if (options.rank < 0 || options.rank >= run.ranks)
    throw SpecError({}, "--rank", "there is no rank " + std::to_string(options.rank),
                    name_of(run) + " has ranks 0 to " + std::to_string(run.ranks - 1));
  handle_signals({SIGINT}, [](int) { attach_interrupted = 1; });
  return follow(run, options.rank);
}

}  // namespace

void add_attach_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<AttachArguments>();
  auto* command = app.add_subcommand("attach", "Watch a run that was detached or started in another terminal");
  options->which.add_to(*command, "Number of the run");
  command->add_option("--rank", options->rank, "Rank whose output is shown")->capture_default_str();
  command->footer(
      R"(Shows the progress of the run and the output of one rank until the run ends, then exits with the exit code of
the run. Ctrl-C detaches; the run continues.

Examples:
  trainctl attach                the active run of this folder, or the only one, for example after run --detach
  trainctl attach 3 --rank 5)");
  command->callback([&chosen, options] { chosen = [options] { return attach(*options); }; });
}

}  // namespace trainctl
