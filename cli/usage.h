// Rewrites the parser's errors about a command line.
#pragma once

#include <string>

#include "cli/command_words.h"

namespace CLI {
class ParseError;
}  // namespace CLI

namespace trainctl {

/// "trainctl show: WHAT is missing: graph | plan | program | weights", followed by a pointer to --help.
/// `words` are those of the line that the parser refused.
std::string usage_error(const CommandWords& words, const CLI::ParseError& error);

/// "unknown command 'rnu'; did you mean 'run'?"; "" if every word in the place of a command is one.
std::string unknown_command(const CommandWords& words);

/// For the first option with an empty value, which the parser may have accepted; "" if there is none.
std::string empty_value_error(const CommandWords& words);

}  // namespace trainctl
