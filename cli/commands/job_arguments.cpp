// The job file and its overrides.
#include "cli/commands/job_arguments.h"

#include <CLI/CLI.hpp>

#include "cli/errors.h"
#include "engine/base/error.h"
#include "engine/spec/fields.h"
#include "engine/spec/parse.h"

namespace trainctl {
namespace {

/// The field of a job that starts the program.
std::string command_of(const std::string& program) {
  const std::string words = program.ends_with(".py")                 ? "python3, " + program
                            : program.ends_with(".sh")               ? "sh, " + program
                            : program.find('/') == std::string::npos ? "./" + program
                                                                     : program;
  return "command: [" + words + "]";
}

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

JobSpec JobArguments::load() const {
  if (!text_) text_ = std::make_shared<const JobText>(read_job_text(file));
  const JobText& text = *text_;
  if (file.ends_with(".py") || file.ends_with(".sh") || text.text.starts_with("#!"))
    throw SpecError({text.name, 0, 0}, "", "this is a program, not a job file",
                    "name it in a job file: " + command_of(file) + "; trainctl init command writes a template");
  keep_source(text.name, text.text);
  return parse_job(text, overrides);
}

JobArguments JobArguments::with(const std::vector<std::string>& more) const {
  JobArguments all = *this;
  all.overrides.insert(all.overrides.end(), more.begin(), more.end());
  return all;
}

}  // namespace trainctl
