// JOB.yaml [a.b=c …]: the arguments of all commands that read a job.
#include "cli/commands/job_arguments.h"

#include <CLI/CLI.hpp>

#include "engine/spec/fields.h"

namespace trainctl {
namespace {

/// Explains why a word is not an override; "" if it is one.
std::string not_an_override(const std::string& word) {
  if (word.find('=') != std::string::npos) return "";
  const std::string begin = "'" + word + "' is not of the form field=value";
  if (word.ends_with(".yaml") || word.ends_with(".yml"))
    return begin + "; only one job file can be given, as the first argument";
  if (!fields_called(word).empty()) return begin + "; add a value, without spaces: " + word + "=VALUE";
  if (word.ends_with(".json")) return begin + "; to pass a file to an option, write '=': --profile=" + word;
  if (word.find('/') != std::string::npos || word.ends_with(".py"))
    return begin + "; name a program and its arguments in the job: command: [python3, train.py]";
  return begin;
}

}  // namespace

void JobArguments::add_to(CLI::App& command, const std::string& option) {
  command.add_option(option, file, "Job file; - reads standard input")->required();
  command.add_option("field=value", overrides, "Fields that override those of the job file, e.g. launch.ranks=4")
      ->check(not_an_override, "");
}

}  // namespace trainctl
