// See the header.
#include "cli/commands/job_arguments.h"

#include <CLI/CLI.hpp>

#include "engine/spec/fields.h"

namespace trainctl {
namespace {

/// Why a word cannot be an override; "" if it can.
std::string not_an_override(const std::string& word) {
  if (word.find('=') != std::string::npos) return "";
  const std::string begin = "'" + word + "' is not of the form field=value";
  if (word.ends_with(".yaml") || word.ends_with(".yml")) return begin + "; one job file is read, the first argument";
  if (!fields_called(word).empty()) return begin + "; write its value, without spaces: " + word + "=VALUE";
  if (word.ends_with(".json")) return begin + "; a file for an option is given with '=': --profile=" + word;
  if (word.find('/') != std::string::npos || word.ends_with(".py"))
    return begin + "; a program and its arguments are named in the job: command: [python3, train.py]";
  return begin;
}

}  // namespace

void JobArguments::add_to(CLI::App& command, const std::string& option) {
  command.add_option(option, file, "The job file; - reads it from standard input")->required();
  command.add_option("field=value", overrides, "Fields to set in place of the file's, e.g. launch.ranks=4")
      ->check(not_an_override, "");
}

}  // namespace trainctl
