// trainctl help: prints the help of a command, the same as its --help.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/command_words.h"
#include "cli/commands/commands.h"
#include "engine/base/error.h"

namespace trainctl {
void add_help_command(CLI::App& app, Action& chosen) {
  auto words = std::make_shared<std::vector<std::string>>();
  auto* command = app.add_subcommand("help", "Show the help of a command");
  command->add_option("command", *words, "Command, e.g. run or bench op; default: overview of all commands");
  command->footer(R"(Examples:
  trainctl help
  trainctl help run
  trainctl help bench op)");
  command->callback([&chosen, &app, words] {
    chosen = [&app, words] {
      const CLI::App& one = command_named(app, *words, "help");
      // App::help() would print the help of the command that was parsed: this one.
      std::cout << app.get_formatter()->make_help(&one, full_name(one), CLI::AppFormatMode::Normal);
      return kExitDone;
    };
  });
}

}  // namespace trainctl
