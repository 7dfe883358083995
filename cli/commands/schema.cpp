// trainctl schema: prints the JSON Schema of a job file, for editors.
#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/commands/commands.h"
#include "engine/base/error.h"
#include "engine/spec/parse.h"

namespace trainctl {

void add_schema_command(CLI::App& app, Action& chosen) {
  auto* command = app.add_subcommand("schema", "Print the JSON Schema of a job file");
  command->footer(R"(Editors use the schema to complete and check job files as you type.

Examples:
  trainctl schema > job.schema.json
  first line of the job file:  # yaml-language-server: $schema=job.schema.json)");
  command->callback([&chosen] {
    chosen = [] {
      std::cout << job_schema() << "\n";
      return kExitDone;
    };
  });
}

}  // namespace trainctl
