// trainctl logs: the runs, and what their ranks wrote.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <ctime>
#include <iostream>
#include <memory>
#include <optional>
#include <regex>
#include <thread>

#include "cli/commands/commands.h"
#include "cli/render/table.h"
#include "cli/render/terminal.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"
#include "launcher/log_reader.h"
#include "launcher/run_directory.h"

namespace trainctl {
namespace {

constexpr auto kFollowPause = std::chrono::milliseconds(100);

struct Options {
  std::optional<int> run;
  std::string ranks;
  std::optional<int64_t> tail;
  bool follow = false;
  std::string grep;
  std::string log_dir = LaunchSpec{}.log_dir;
};

std::string started_at(const RunDirectory& run) {
  struct stat status {};
  if (stat(run.file("job.yaml").c_str(), &status) != 0) return "?";
  char text[32];
  std::tm local{};
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", localtime_r(&status.st_mtime, &local));
  return text;
}

int list(const std::string& log_dir) {
  const std::vector<int> runs = list_runs(log_dir);
  if (runs.empty()) {
    std::cout << "no runs in " << log_dir << "\n";
    return kExitDone;
  }
  Table table({">run", "state", ">ranks", "started", "first rank's last line"});
  for (const int number : runs) {
    const RunDirectory run(log_dir, number);
    table.add({std::to_string(number), std::string(to_string(state_of(run))), std::to_string(run.ranks().size()),
               started_at(run), tail_of_file(run.rank_file(0, "stdout"), 1)});
  }
  std::cout << table.str();
  return kExitDone;
}

/// One stream of one rank, and the prefix of its lines.
struct Source {
  std::string prefix;
  std::unique_ptr<LogFile> file;
};

std::vector<int> chosen_ranks(const Options& options, const RunDirectory& run) {
  const std::vector<int> there = run.ranks();
  if (there.empty()) {
    throw EnvError("there is no run " + std::to_string(run.run()) + " in " + options.log_dir +
                   "; trainctl logs lists those that are there");
  }
  if (options.ranks.empty()) return there;
  const std::vector<int> wanted = parse_ranks(options.ranks);
  for (const int rank : wanted) {
    if (!std::binary_search(there.begin(), there.end(), rank)) {
      throw EnvError("run " + std::to_string(run.run()) + " has no rank " + std::to_string(rank) +
                     "; it has ranks 0 to " + std::to_string(there.back()));
    }
  }
  return wanted;
}

std::vector<Source> open_sources(const Options& options, const RunDirectory& run) {
  static constexpr Paint kColors[] = {Paint::cyan, Paint::green, Paint::yellow, Paint::blue, Paint::magenta};
  std::vector<Source> sources;
  for (const int rank : chosen_ranks(options, run)) {
    for (const char* stream : {"stdout", "stderr"}) {
      const bool error = stream == std::string_view("stderr");
      const Paint color = error ? Paint::red : kColors[static_cast<size_t>(rank) % std::size(kColors)];
      const std::string name = "rank " + std::to_string(rank) + (error ? " err" : "");
      Source source{paint(1, color, name + " | "), std::make_unique<LogFile>(run.rank_file(rank, stream))};
      if (options.tail) source.file->skip_to_last(*options.tail);
      sources.push_back(std::move(source));
    }
  }
  return sources;
}

int print(const Options& options) {
  const RunDirectory run(options.log_dir, *options.run);
  std::vector<Source> sources = open_sources(options, run);
  std::optional<std::regex> pattern;
  if (!options.grep.empty()) pattern.emplace(options.grep, std::regex::optimize);
  const auto print_lines = [&](Source& source, bool last) {
    const auto on_line = [&](std::string_view line) {
      if (pattern && !std::regex_search(line.begin(), line.end(), *pattern)) return;
      std::cout << source.prefix << line << '\n';
    };
    if (!last) return source.file->read(on_line);
    source.file->finish(on_line);
    return true;
  };
  while (options.follow && state_of(run) == RunState::running) {
    bool any = false;
    for (Source& source : sources) any = print_lines(source, false) || any;
    std::cout.flush();
    if (!std::cout) return kExitDone;  // the reader has seen enough
    if (!any) std::this_thread::sleep_for(kFollowPause);
  }
  for (Source& source : sources) print_lines(source, true);
  std::cout.flush();
  return kExitDone;
}

int logs(const Options& options) {
  try {
    return options.run ? print(options) : list(options.log_dir);
  } catch (const std::invalid_argument& error) {
    throw SpecError({}, "--rank", error.what());
  } catch (const std::regex_error& error) {
    throw SpecError({}, "--grep", "'" + options.grep + "' is no regular expression: " + error.what());
  }
}

}  // namespace

void add_logs_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("logs", "List the runs, or print what a run's ranks wrote");
  command->add_option("run", options->run, "A run's number; without it the runs are listed");
  command->add_option("--rank", options->ranks, "Which ranks, e.g. 0,3-5; all where it is left out");
  command->add_option("--tail", options->tail, "Only the last N lines of each stream")->check(CLI::NonNegativeNumber);
  command->add_flag("-f,--follow", options->follow, "Go on until the run ends");
  command->add_option("--grep", options->grep, "Only lines that match this regular expression");
  command->add_option("--log-dir", options->log_dir, "The job's launch.log_dir")->capture_default_str();
  command->footer(R"(Examples:
  trainctl logs                                list the runs
  trainctl logs 1 --rank 0,3-5 --tail 20
  trainctl logs 1 --grep 'error|warning'
  trainctl logs 1 --follow --rank 0)");
  command->callback([&chosen, options] { chosen = [options] { return logs(*options); }; });
}

}  // namespace trainctl
