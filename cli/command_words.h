// Splits a command line into its command, arguments and options, even if it is incomplete or wrong. The parser itself
// stops at the first error, and completion never sees a whole line.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trainctl {

/// An option that its command does not have.
struct UnknownOption {
  std::string name;   ///< including its dashes: "--nproc-per-node"
  std::string value;  ///< after its '=', or the next word unless that begins with '-'; may be empty
};

struct CommandWords {
  const CLI::App* command = nullptr;     ///< the innermost command named; the app if there is none
  std::vector<std::string> positionals;  ///< in order
  std::vector<UnknownOption> unknown;    ///< in the order given
  std::string not_a_command;             ///< the unknown word in the position of a command; "" if there is none
  const CLI::Option* awaited = nullptr;  ///< the last word is this option, which needs a value
  std::vector<std::pair<const CLI::Option*, std::string>> values;  ///< options with their values
  bool options_ended = false;                                      ///< whether "--" was seen

  /// The value of an option; "" if it was not given.
  std::string value_of(const std::string& option) const;
};

/// `words` follow "trainctl".
CommandWords split_words(const CLI::App& app, const std::vector<std::string>& words);

/// "trainctl bench op".
std::string full_name(const CLI::App& command);

/// The commands of an app, or of a command like bench, without the hidden ones.
std::vector<const CLI::App*> commands_of(const CLI::App& app);
std::vector<std::string> names_of_commands(const CLI::App& app);
/// Null if there is none; also finds hidden ones.
const CLI::App* find_command(const CLI::App& app, const std::string& name);
/// Returns the command that the words name after "trainctl"; the app itself for no words. Throws SpecError for
/// `asked_by`, the command that received these words ("help").
const CLI::App& command_named(const CLI::App& app, const std::vector<std::string>& words, const std::string& asked_by);
/// "--rank" or "-n"; null if there is no such option. Positional arguments never match.
const CLI::Option* find_option(const CLI::App& command, const std::string& name);

}  // namespace trainctl
