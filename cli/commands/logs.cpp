// trainctl logs: lists the runs, or prints the output of their ranks.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "cli/commands/commands.h"
#include "cli/commands/find_run.h"
#include "cli/render/log_printer.h"
#include "cli/render/run_list.h"
#include "cli/render/terminal.h"
#include "engine/base/error.h"
#include "engine/base/open_files.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"
#include "launcher/live_status.h"
#include "launcher/log_bundle.h"
#include "launcher/log_merge.h"
#include "launcher/log_selection.h"
#include "launcher/run_directory.h"

namespace trainctl {
namespace {

constexpr auto kFollowPause = std::chrono::milliseconds(50);
constexpr size_t kWriteBytes = 1 << 20;

struct LogsArguments {
  std::string run;  ///< a number, "latest", or the run's folder; empty: see wants_lines()
  std::string ranks;
  std::optional<int64_t> tail;
  std::string since;
  std::string grep;
  bool follow = false;
  bool json = false;
  bool no_prefix = false;
  std::string bundle;
  std::string log_dir = LaunchSpec{}.log_dir;

  /// Returns whether the user asks for output. If not, and no run is given, the runs are listed.
  bool wants_lines() const {
    return !run.empty() || !ranks.empty() || tail || !since.empty() || !grep.empty() || follow || no_prefix ||
           !bundle.empty();
  }
  /// True if a last line on stderr reports how the run ended, for users who read the whole output.
  bool wants_summary() const { return grep.empty() && since.empty() && !json && !no_prefix; }
};

int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Parses an option's value; turns a parse error into a SpecError.
template <class Read>
auto option_value(const char* option, const Read& read) {
  try {
    return read();
  } catch (const std::invalid_argument& error) {
    throw SpecError({}, option, error.what());
  }
}

std::vector<int> chosen_ranks(const LogsArguments& options, const RunDirectory& run) {
  const std::vector<int> there = run.ranks();
  if (options.ranks.empty()) return there;
  const std::vector<int> wanted = option_value("--rank", [&] { return parse_ranks(options.ranks); });
  for (const int rank : wanted) {
    if (std::binary_search(there.begin(), there.end(), rank)) continue;
    throw SpecError({}, "--rank", "run " + std::to_string(run.run()) + " has no rank " + std::to_string(rank),
                    "it has ranks " + format_ranks(there));
  }
  return wanted;
}

void write_out(LogPrinter& printer) {
  const std::string text = printer.take();
  std::cout.write(text.data(), static_cast<std::streamsize>(text.size())).flush();
}

/// Prints the chosen ranks' output, merged by time, until the run ends if --follow is given.
int print(const LogsArguments& options) {
  const RunDirectory run = find_run(options.run, options.log_dir);
  const std::vector<int> ranks = chosen_ranks(options, run);
  const int64_t since =
      option_value("--since", [&] { return options.since.empty() ? 0 : parse_since(options.since, unix_ns()); });
  LogPrinter printer = option_value("--grep", [&] {
    return LogPrinter({.json = options.json,
                       .prefix = !options.no_prefix,
                       .terminal = is_terminal(STDOUT_FILENO),
                       .colors = colors(STDOUT_FILENO),
                       .largest_rank = ranks.empty() ? 0 : ranks.back(),
                       .names = run.names(),
                       .grep = options.grep,
                       .tail = options.tail});
  });
  allow_open_files();  // each stream may need two: its log and its times
  LogMerge merge(run, ranks);
  if (since > 0) {
    merge.skip_until(since);
  } else if (options.tail && options.grep.empty()) {
    merge.skip_to_last(*options.tail);  // each rank's last lines are among its streams' last lines
  }
  const int64_t started = unix_ns();
  const auto on_block = [&](const LogSource& source, const LogBlock& block) {
    if (block.ns != 0 && block.ns < since) return;
    if (options.follow && block.ns > started) printer.end_tail();  // all earlier lines have been read
    printer.block(source, block);
    if (printer.gathered() >= kWriteBytes) write_out(printer);
  };
  for (;;) {
    const bool grows = options.follow && state_of(run) == RunState::running;
    const bool any = merge.read(grows, on_block);
    if (!any) printer.end_tail();
    write_out(printer);
    if (!std::cout) return kExitDone;  // main reports it
    if (!any && !grows) {
      // Not to stdout, which contains only the ranks' lines.
      if (options.wants_summary() && state_of(run) != RunState::running) std::cerr << run_summary(run);
      return kExitDone;
    }
    if (!any) std::this_thread::sleep_for(kFollowPause);
  }
}

int bundle(const LogsArguments& options, const std::string& version) {
  const RunDirectory run = find_run(options.run, options.log_dir);
  const int64_t bytes = write_bundle(run, options.bundle, version);
  std::cout << "run " << run.run() << ": written to " << options.bundle << " (" << format_bytes(bytes) << ")\n";
  return kExitDone;
}

int logs(const LogsArguments& options, const std::string& version) {
  if (!options.bundle.empty()) return bundle(options, version);
  if (options.wants_lines()) return print(options);
  std::cout << (options.json
                    ? run_lines(options.log_dir)
                    : run_table(options.log_dir, is_terminal(STDOUT_FILENO) ? terminal_width(STDOUT_FILENO)
                                                                            : std::numeric_limits<int>::max()));
  return kExitDone;
}

}  // namespace

void add_logs_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<LogsArguments>();
  auto* command = app.add_subcommand("logs", "List the runs, or print the output of a run's ranks");
  command->add_option(
      "run", options->run,
      "Number or folder of a run, or latest; without it, list the runs, or use latest with other options");
  command->add_option("--rank", options->ranks, "Ranks to show, e.g. 0,3-5; default: all");
  command->add_flag("-f,--follow", options->follow, "Follow the output until the run ends");
  command->add_option("-n,--tail", options->tail, "Only the last N lines of each rank")->check(CLI::NonNegativeNumber);
  command->add_option("--since", options->since,
                      "Only lines since a time: 10m (ago), 2h30m, 14:30, 2026-01-31T14:30:00");
  command->add_option("--grep", options->grep, "Only lines that match this extended regular expression");
  command->add_flag("--no-prefix", options->no_prefix, "Omit the prefix \"rank N | \"");
  command->add_flag("--json", options->json,
                    "Print one JSON object per line: time, rank, stream, text; for the list, run, state, …");
  command->add_option("--bundle", options->bundle,
                      "Write the whole run, with a description of this host, to a .tar.gz file");
  command->add_option("--log-dir", options->log_dir, "launch.log_dir of the job")->capture_default_str();
  command->footer(R"(Examples:
  trainctl logs                                list the runs
  trainctl logs --follow                       follow the latest run
  trainctl logs 1 --rank 0,3-5 --tail 20
  trainctl logs 1 --since 10m --grep 'error|warning'
  trainctl logs 1 --json | jq -r 'select(.stream == "stderr") | .text'
  trainctl logs 1 --bundle run-1.tar.gz        pack the run to share it)");
  command->callback(
      [&chosen, &app, options] { chosen = [options, version = app.version()] { return logs(*options, version); }; });
}

}  // namespace trainctl
