// Parses the command line with CLI11, and runs the command that the user chose.
#include "cli/command_line.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_words.h"
#include "cli/commands/commands.h"
#include "cli/complete/complete.h"
#include "cli/errors.h"
#include "cli/usage.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "launcher/signals.h"

namespace trainctl {

namespace {

constexpr const char* kFooter = R"(Examples:
  trainctl init mlp -o job.yaml                 write a commented job file
  trainctl check job.yaml                       validate it
  trainctl plan job.yaml launch.ranks=8         show how it would run, without running it
  trainctl run job.yaml train.epochs=2          train, one process per rank
  trainctl run job.yaml --detach                the same, in the background; then:
  trainctl ps                                     list the runs with their progress and loss
  trainctl attach                                 watch it; Ctrl-C detaches
  trainctl logs 1 --rank 0,3-5 --tail 20          print the output of some ranks of run 1
  trainctl stop 1                                 stop it after the current step
  trainctl checkpoint list                        list what the latest run has saved
  trainctl help run                             options and examples of a command

Any field of the job file can be set on the command line: parallel.stages=2 launch.ranks=4
A job can start any program instead of a network:  command: [python3, train.py]  (docs/launching.md)
Exit codes: 0 success, 2 error in the job file or command line, 3 error of the machine (files, memory, network),
            4 bug in trainctl, 5 a rank failed or the loss is nan or infinite, 130 and 143 stopped by Ctrl-C and
            SIGTERM; 1 diff or checkpoint diff found a difference)";

/// cron and daemons may start this program with closed standard streams, whose descriptors later files would get.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    if (open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) _exit(kExitEnv);
  }
}

/// A full disk or a closed pipe must not look like success.
int flushed(int exit_code) {
  std::cout.flush();
  if (std::cout || exit_code != kExitDone) return exit_code;
  std::cerr << "error: could not write all of the output\n";
  return kExitEnv;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  begin_signals();
  open_standard_streams();
  CLI::App app(
      "Trains neural networks described in YAML. Results do not depend on the number of ranks, up to rounding.",
      "trainctl");
  app.set_version_flag("--version", "trainctl " TRAINCTL_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  Action chosen;
  for (const auto add : kCommands) add(app, chosen);
  // The arguments of `complete` are an incomplete command line, which the parser would reject.
  if (argc > 1 && std::string_view(argv[1]) == "complete")
    return flushed(print_candidates(app, {argv + 2, argv + argc}));
  const CommandWords words = split_words(app, {argv + 1, argv + argc});
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    // CLI11 reports an unknown command as a missing one.
    const std::string unknown = words.unknown.empty() ? unknown_command(words) : "";
    std::cerr << printable_lines(unknown.empty()
                                     ? usage_error(words, error)
                                     : unknown + "\n  " + full_name(*words.command) + " --help shows examples\n");
    return kExitSpec;
  }
  if (const std::string message = empty_value_error(words); !message.empty()) {
    std::cerr << printable_lines(message);
    return kExitSpec;
  }
  try {
    return flushed(chosen());
  } catch (...) {
    return report_current_exception();
  }
}

}  // namespace trainctl
