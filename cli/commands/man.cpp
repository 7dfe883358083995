// trainctl man: prints a manual page, or writes all of them for a package.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/command_words.h"
#include "cli/commands/commands.h"
#include "cli/man_page.h"
#include "engine/base/error.h"
#include "engine/base/output_file.h"

namespace trainctl {
namespace {

struct ManOptions {
  std::vector<std::string> words;
  std::string folder;
};

void write_pages(const CLI::App& command, const std::string& version, const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / man_page_file(command);
  write_output(path, man_page(command, version));
  for (const CLI::App* each : commands_of(command)) write_pages(*each, version, folder);
}

int print_or_write(const CLI::App& app, const ManOptions& options) {
  const CLI::App& command = command_named(app, options.words, "man");
  if (options.folder.empty()) {
    std::cout << man_page(command, app.version());
    return kExitDone;
  }
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) throw EnvError("--output: cannot create the folder " + options.folder + ": " + error.message());
  write_pages(command, app.version(), options.folder);
  return kExitDone;
}

}  // namespace

void add_man_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<ManOptions>();
  auto* command = app.add_subcommand("man", "Print a manual page, or write all of them");
  command->add_option("command", options->words, "Command, e.g. run or bench op; default: trainctl itself");
  command->add_option("-o,--output", options->folder,
                      "Write its page and the pages of its subcommands to this folder, as NAME.1");
  command->footer(
      R"(The pages have the same content as --help. `./bootstrap install` and the packages install them.

Examples:
  trainctl man run | man -l -
  trainctl man -o ~/.local/share/man/man1)");
  command->callback([&chosen, &app, options] { chosen = [&app, options] { return print_or_write(app, *options); }; });
}

}  // namespace trainctl
