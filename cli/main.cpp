// trainctl: the command line. Each command is a file of commands/.
#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>

#include "cli/commands/commands.h"
#include "cli/errors.h"
#include "engine/base/error.h"

namespace {

constexpr const char* kFooter = R"(Examples:
  trainctl init mlp -o job.yaml                 write a commented job file
  trainctl check job.yaml                       is it right?
  trainctl plan job.yaml launch.ranks=8         how it would run, without running it
  trainctl run job.yaml train.epochs=2          train, one process a rank
  trainctl logs 1 --rank 0,3-5 --tail 20        what the ranks of run 1 wrote

Any field of the job file can be set on the command line: parallel.stages=2 launch.ranks=4
Exit codes: 0 done, 2 the job file is wrong, 3 the machine (files, memory), 4 a bug of trainctl,
            5 a rank failed, 130 and 143 stopped by Ctrl-C and SIGTERM)";

}  // namespace

int main(int argc, char** argv) {
  using namespace trainctl;
  CLI::App app("Trains a neural network described in YAML, on many ranks, the same numbers on any.", "trainctl");
  app.set_version_flag("--version", "trainctl " TRAINCTL_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  Action chosen;
  for (const auto add : kCommands) add(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11's own codes for bad arguments are of no use to a caller: they are errors of the user.
    return app.exit(error) == 0 ? kExitDone : kExitSpec;
  }
  try {
    return chosen();
  } catch (...) {
    return report_current_exception();
  }
}
