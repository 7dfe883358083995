// CLI11's errors name their option only in their text, so it is parsed.
#include "cli/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "engine/base/text.h"

namespace trainctl {
namespace {

/// The command that was given, or the app itself.
const CLI::App& command_of(const CLI::App& app) {
  const auto given = app.get_subcommands();
  return given.empty() ? app : *given.front();
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// The option that the text starts with or names; null if there is none.
const CLI::Option* option_in(const CLI::App& command, const std::string& text) {
  const CLI::Option* found = nullptr;
  size_t longest = 0;
  for (const CLI::Option* option : command.get_options()) {
    for (const bool positional : {false, true}) {
      const std::string name = option->get_name(positional);
      if (name.size() > longest && text.find(name) != std::string::npos) {
        found = option;
        longest = name.size();
      }
    }
  }
  return found;
}

std::string unexpected(const CLI::App& command, const std::string& text) {
  const size_t colon = text.rfind(": ");
  std::string word = colon == std::string::npos ? text : text.substr(colon + 2);
  word = word.substr(0, word.find(' '));
  if (!word.starts_with('-')) return "'" + word + "' is one word too many";
  if (const size_t equals = word.find('='); equals != std::string::npos && word.find('.') < equals)
    return "unknown option '" + word +
           "'; fields of the job are given without dashes: " + word.substr(word.find_first_not_of('-'));
  const std::string near = did_you_mean(word, option_names(command));
  return "unknown option '" + word + "'" + (near.empty() ? "" : "; " + near);
}

/// From "Could not convert: --rank = x", or from a range's "--tail: Value x not in range 0.0 to …".
std::string not_a_number(const CLI::Option& option, const std::string& text) {
  constexpr std::string_view kValue = "Value ", kRange = " not in range";
  std::string value;
  if (const size_t range = text.find(kRange); range != std::string::npos) {
    const size_t begin = text.find(kValue) + kValue.size();
    value = text.substr(begin, range - begin);
  } else if (const size_t equals = text.rfind(" = "); equals != std::string::npos) {
    value = text.substr(equals + 3);
  }
  return option.get_name() + ": '" + value + "' is no number that it can be";
}

std::string missing_command(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_group().empty()) names.push_back(command->get_name());
  return "a command is missing: " + join(names);
}

std::string message(const CLI::App& command, const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
  if (kind == CLI::ExitCodes::RequiredError && command.get_parent() == nullptr) return missing_command(command);
  if (kind == CLI::ExitCodes::ExtrasError) return unexpected(command, text);
  const CLI::Option* option = option_in(command, text);
  if (option == nullptr) return text;
  if (kind == CLI::ExitCodes::RequiredError) return option->get_name() + " is missing: " + option->get_description();
  if (kind == CLI::ExitCodes::ArgumentMismatch)
    return option->get_name() + " lacks its value: " + option->get_description();
  if (kind == CLI::ExitCodes::ConversionError || text.find(" not in range") != std::string::npos)
    return not_a_number(*option, text);
  return text;
}

}  // namespace

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = command_of(app);
  const std::string name = &command == &app ? "trainctl" : "trainctl " + command.get_name();
  return name + ": " + message(command, error) + "\n  " + name + " --help has examples\n";
}

}  // namespace trainctl
