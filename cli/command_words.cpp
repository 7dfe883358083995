// Splits a command line into its command, arguments and options, for completion and error messages, by the rules of
// CLI11: options may come anywhere after their command, "--name=value" and "-n5" give a value, "--" ends the options.
#include "cli/command_words.h"

#include <CLI/CLI.hpp>

#include "engine/base/entry_types.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/fields.h"
#include "engine/spec/foreign_names.h"

namespace trainctl {
namespace {

bool takes_value(const CLI::Option& option) { return option.get_items_expected_min() > 0; }

bool is_option(const std::string& word) { return word.size() > 1 && word.starts_with('-'); }

/// Returns whether a job file knows the word, or another tool's job file would.
bool is_name_of_job(const std::string& word) {
  for (const std::vector<EntryType>* types :
       {&layer_types(), &loss_types(), &optimizer_types(), &metric_types(), &transform_types()})
    if (find_type(*types, word) != nullptr) return true;
  return !find_foreign(word).empty() || !fields_called(word).empty();
}

class Splitter {
 public:
  explicit Splitter(const CLI::App& app) { found_.command = &app; }

  void read(const std::vector<std::string>& words) {
    for (size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[i];
      if (found_.awaited != nullptr) {
        found_.values.emplace_back(std::exchange(found_.awaited, nullptr), word);
      } else if (found_.options_ended || !is_option(word)) {
        argument(word);
      } else if (word == "--") {
        found_.options_ended = true;
      } else {
        i += option(word, i + 1 < words.size() ? words[i + 1] : "");
      }
    }
  }

  CommandWords take() { return std::move(found_); }

 private:
  void argument(const std::string& word) {
    const bool names_command = !commands_of(*found_.command).empty();
    if (!names_command) {
      found_.positionals.push_back(word);
    } else if (const CLI::App* command = find_command(*found_.command, word)) {
      found_.command = command;
    } else if (found_.not_a_command.empty()) {
      found_.not_a_command = word;
    }
  }

  /// Returns the number of following words that belong to it.
  size_t option(const std::string& word, const std::string& next) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const CLI::Option* known = find_option(*found_.command, name);
    if (known == nullptr && !word.starts_with("--")) {
      known = find_option(*found_.command, word.substr(0, 2));  // -n5, or several flags: -ad
      if (known != nullptr && word.size() > 2) {
        if (takes_value(*known)) found_.values.emplace_back(known, word.substr(2));
        return 0;
      }
    }
    if (known != nullptr) {
      if (equals != std::string::npos)
        found_.values.emplace_back(known, word.substr(equals + 1));
      else if (takes_value(*known))
        found_.awaited = known;
      return 0;
    }
    if (equals != std::string::npos) {
      found_.unknown.push_back({name, word.substr(equals + 1)});
      return 0;
    }
    const bool is_value = !next.empty() && !is_option(next) && find_command(*found_.command, next) == nullptr &&
                          !next.ends_with(".yaml") && !next.ends_with(".yml");
    found_.unknown.push_back({name, is_value ? next : ""});
    return is_value && next.find('=') == std::string::npos ? 1 : 0;
  }

  CommandWords found_;
};

}  // namespace

std::string CommandWords::value_of(const std::string& option) const {
  for (const auto& [given, value] : values)
    if (given->check_name(option)) return value;
  return "";
}

CommandWords split_words(const CLI::App& app, const std::vector<std::string>& words) {
  Splitter splitter(app);
  splitter.read(words);
  return splitter.take();
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  std::vector<const CLI::App*> shown;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_group().empty()) shown.push_back(command);
  return shown;
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (command->get_name() == name) return command;
  return nullptr;
}

const CLI::App& command_named(const CLI::App& app, const std::vector<std::string>& words, const std::string& asked_by) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    const CLI::App* next = find_command(*command, word);
    const std::vector<std::string> names = names_of_commands(*command);
    if (next == nullptr && names.empty())
      throw SpecError({}, asked_by, full_name(*command) + " has no subcommands, so '" + word + "' is unexpected",
                      "trainctl " + asked_by + full_name(*command).substr(app.get_name().size()));
    if (next == nullptr) {
      const std::string near = did_you_mean(word, names);
      throw SpecError({}, asked_by, full_name(*command) + " has no command '" + word + "'",
                      is_name_of_job(word) ? "trainctl translate " + word + " shows its fields"
                      : near.empty()       ? "available commands: " + join(names)
                                           : near);
    }
    command = next;
  }
  return *command;
}

const CLI::Option* find_option(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* option : command.get_options())
    if (!option->get_positional() && option->check_name(name)) return option;
  return nullptr;
}

}  // namespace trainctl
