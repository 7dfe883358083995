// Errors in a command line, in our own words.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace trainctl {

/// "trainctl show: WHAT is missing: graph | plan | program | weights", and a pointer to --help.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace trainctl
