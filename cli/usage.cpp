// Rewrites the errors of CLI11 about a command line. They name their option only in their text, so this file parses the
// text.
#include "cli/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "cli/foreign_options.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

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

/// Error for an unexpected word; unknown_option reports options.
std::string unexpected(const std::string& text) {
  const size_t colon = text.rfind(": ");
  std::string word = colon == std::string::npos ? text : text.substr(colon + 2);
  return "'" + word.substr(0, word.find(' ')) + "' is an unexpected argument";
}

std::string unknown_option(const CommandWords& words, const UnknownOption& option) {
  const std::string begin = "unknown option '" + option.name + "'";
  // An option before its command, as in `trainctl --json plan job.yaml`, is one of the app.
  const CLI::App& command = *words.command;
  if (find_option(command, option.name) != nullptr)
    return begin + " before the command; write options after it: " + full_name(command) + " " + option.name;
  const size_t dot = option.name.find('.');
  if (dot != std::string::npos) {
    return begin +
           "; write fields of the job without dashes: " + option.name.substr(option.name.find_first_not_of('-')) +
           (option.value.empty() ? "=VALUE" : "=" + option.value);
  }
  if (const std::string ours = our_spelling(command, option); !ours.empty()) return begin + "; " + ours;
  const std::string near = did_you_mean(option.name, option_names(command));
  return begin + (near.empty() ? "" : "; " + near);
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
  return option.get_name() + ": '" + value + "' is not a number in the accepted range";
}

std::string message(const CLI::App& command, const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
  if (kind == CLI::ExitCodes::RequiredError && !commands_of(command).empty())
    return "missing command; available commands: " + join(names_of_commands(command));
  if (kind == CLI::ExitCodes::ExtrasError) return unexpected(text);
  const CLI::Option* option = option_in(command, text);
  if (kind == CLI::ExitCodes::RequiredError && text.starts_with("A subcommand"))
    return "'--' has no meaning before the command; remove it";
  if (option == nullptr) return text;
  if (kind == CLI::ExitCodes::ValidationError && option->get_positional() &&
      text.starts_with(option->get_name() + ": "))
    return text.substr(option->get_name().size() + 2);
  if (kind == CLI::ExitCodes::RequiredError) return option->get_name() + " is missing: " + option->get_description();
  if (kind == CLI::ExitCodes::ArgumentMismatch)
    return option->get_name() + " requires a value: " + option->get_description();
  if (kind == CLI::ExitCodes::ConversionError || text.find(" not in range") != std::string::npos)
    return not_a_number(*option, text);
  return text;
}

/// Error for an option with an empty value, such as --log-dir=$LOGS if the variable is unset. The parser takes some of
/// these for options without a value.
std::string empty_value(const CommandWords& words) {
  for (const auto& [option, value] : words.values)
    if (value.empty())
      return full_name(*words.command) + ": " + option->get_name() +
             ": the value is empty; check for an unset shell variable\n";
  return "";
}

std::string see_help(const std::string& command) { return "  " + command + " --help shows examples\n"; }

/// The trainctl command that other tools call `word`.
std::string synonym(const std::string& word) {
  static const std::map<std::string, std::string> kCommands = {{"train", "run"},
                                                               {"start", "run"},
                                                               {"launch", "run"},
                                                               {"exec", "run"},
                                                               {"fit", "run"},
                                                               {"validate", "check"},
                                                               {"lint", "check"},
                                                               {"verify", "check"},
                                                               {"explain", "plan"},
                                                               {"kill", "stop"},
                                                               {"cancel", "stop"},
                                                               {"end", "stop"},
                                                               {"status", "ps"},
                                                               {"list", "ps"},
                                                               {"ls", "ps"},
                                                               {"tail", "logs"},
                                                               {"new", "init"},
                                                               {"create", "init"},
                                                               {"benchmark", "bench"},
                                                               {"version", "--version"},
                                                               {"test", "evaluate"},
                                                               {"eval", "evaluate"},
                                                               {"score", "evaluate"},
                                                               {"infer", "predict"},
                                                               {"inference", "predict"},
                                                               {"classify", "predict"},
                                                               {"chat", "generate"},
                                                               {"submit", "run"},
                                                               {"resume", "run JOB.yaml --resume"},
                                                               {"restart", "run JOB.yaml --resume"},
                                                               {"continue", "run JOB.yaml --resume"},
                                                               {"finetune", "init --from FOLDER --finetune chat"},
                                                               {"tune", "sweep"},
                                                               {"search", "sweep"},
                                                               {"export", "checkpoint export"},
                                                               {"convert", "data convert"},
                                                               {"tokenize", "data tokens"},
                                                               {"summary", "show model"},
                                                               {"compare", "diff"},
                                                               {"history", "ps --all"},
                                                               {"runs", "ps --all"},
                                                               {"plot", "report"},
                                                               {"tensorboard", "tensorboard --logdir log_output"},
                                                               {"profile", "run JOB.yaml --profile"},
                                                               {"templates", "init"},
                                                               {"apply", "render"}};
  const auto known = kCommands.find(word);
  return known == kCommands.end() ? "" : known->second;
}

}  // namespace

std::string unknown_command(const CommandWords& words) {
  const std::string& word = words.not_a_command;
  if (word.empty()) return "";
  const bool is_root = words.command->get_parent() == nullptr;
  const std::string name = full_name(*words.command);
  std::error_code error;
  if (is_root && (word.ends_with(".yaml") || word.ends_with(".yml")))
    return "'" + word + "' is not a command; to run this job: trainctl run " + word;
  if (is_root && std::filesystem::is_regular_file(word, error))
    return "'" + word + "' is not a command; to run a program, name it in a job file: command: [python3, train.py]; " +
           "trainctl init command writes a template";
  const std::vector<std::string> names = names_of_commands(*words.command);
  const std::string other = is_root ? synonym(word) : "";
  const std::string near = other.empty() ? did_you_mean(word, names) : "did you mean '" + other + "'?";
  const bool few = names.size() < 4;
  return (is_root ? "" : name + ": ") + "unknown command '" + word + "'; " +
         (near.empty() || few ? "available commands: " + join(names) : near);
}

std::string usage_error(const CommandWords& words, const CLI::ParseError& error) {
  const std::string name = full_name(*words.command);
  std::string text;
  for (const UnknownOption& option : words.unknown) text += name + ": " + unknown_option(words, option) + "\n";
  if (text.empty()) text = empty_value(words);
  if (text.empty()) text = name + ": " + message(*words.command, error) + "\n";
  return text + see_help(name);
}

std::string empty_value_error(const CommandWords& words) {
  const std::string text = empty_value(words);
  return text.empty() ? "" : text + see_help(full_name(*words.command));
}

}  // namespace trainctl
