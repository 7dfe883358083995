// The job file and its overrides.
#include "cli/commands/job_arguments.h"

#include <CLI/CLI.hpp>

#include "engine/spec/parse.h"

namespace trainctl {

void JobArguments::add_to(CLI::App& command) {
  command.add_option("JOB.yaml", file, "The job file")->required();
  command.add_option("field=value", overrides, "Fields to set in place of the file's, e.g. launch.ranks=4")
      ->check([](const std::string& word) {
        return word.find('=') != std::string::npos ? "" : "'" + word + "' is not of the form field=value";
      });
}

JobSpec JobArguments::load() const { return load_job(file, overrides); }

}  // namespace trainctl
