// trainctl help: the help of a command, as its --help prints it.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/command_words.h"
#include "cli/commands/commands.h"
#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

const CLI::App& command_named(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    const CLI::App* next = find_command(*command, word);
    const std::vector<std::string> names = names_of_commands(*command);
    if (next == nullptr && names.empty())
      throw SpecError({}, "help",
                      full_name(*command) + " has no commands of its own, and '" + word + "' is one too many",
                      "trainctl help" + full_name(*command).substr(app.get_name().size()));
    if (next == nullptr) {
      const std::string near = did_you_mean(word, names);
      throw SpecError({}, "help", full_name(*command) + " has no command '" + word + "'",
                      near.empty() ? "there are " + join(names) : near);
    }
    command = next;
  }
  return *command;
}

}  // namespace

void add_help_command(CLI::App& app, Action& chosen) {
  auto words = std::make_shared<std::vector<std::string>>();
  auto* command = app.add_subcommand("help", "Explain a command");
  command->add_option("command", *words, "The command, e.g. run, or bench op; default: all of them");
  command->footer(R"(Examples:
  trainctl help
  trainctl help run
  trainctl help bench op)");
  command->callback([&chosen, &app, words] {
    chosen = [&app, words] {
      const CLI::App& one = command_named(app, *words);
      // App::help() would print the help of the command that was parsed: this one.
      std::cout << app.get_formatter()->make_help(&one, full_name(one), CLI::AppFormatMode::Normal);
      return kExitDone;
    };
  });
}

}  // namespace trainctl
