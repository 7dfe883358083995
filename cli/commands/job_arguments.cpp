// The job file and its overrides.
#include "cli/commands/job_arguments.h"

#include <CLI/CLI.hpp>

#include "cli/errors.h"
#include "engine/base/error.h"
#include "engine/spec/fields.h"
#include "engine/spec/parse.h"

namespace trainctl {
namespace {

/// The job's field that starts the program.
std::string command_of(const std::string& program) {
  const std::string words = program.ends_with(".py")                 ? "python3, " + program
                            : program.ends_with(".sh")               ? "sh, " + program
                            : program.find('/') == std::string::npos ? "./" + program
                                                                     : program;
  return "command: [" + words + "]";
}

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

JobSpec JobArguments::load() const {
  if (!text_) text_ = std::make_shared<const JobText>(read_job_text(file));
  const JobText& text = *text_;
  if (file.ends_with(".py") || file.ends_with(".sh") || text.text.starts_with("#!"))
    throw SpecError({text.name, 0, 0}, "", "this is a program, not a job file",
                    "a job names it, " + command_of(file) + "; start from `trainctl init command`");
  keep_source(text.name, text.text);
  return parse_job(text, overrides);
}

JobArguments JobArguments::with(const std::vector<std::string>& more) const {
  JobArguments all = *this;
  all.overrides.insert(all.overrides.end(), more.begin(), more.end());
  return all;
}

}  // namespace trainctl
