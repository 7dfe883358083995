// trainctl schema: prints the JSON Schema of a job file, for editors.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands/check_plugin.h"
#include "cli/commands/commands.h"
#include "engine/base/error.h"
#include "engine/spec/parse.h"

namespace trainctl {

void add_schema_command(CLI::App& app, Action& chosen) {
  auto* command = app.add_subcommand("schema", "Print the JSON Schema of a job file");
  auto plugins = std::make_shared<std::vector<std::string>>();
  command->add_option("--plugin", *plugins, "Add the layer types of this shared library; may be repeated")
      ->type_name("FILE");
  command->footer(R"(Editors use the schema to complete and check job files as you type.

Examples:
  trainctl schema > job.schema.json
  trainctl schema --plugin ./my_op.so > job.schema.json
  first line of the job file:  # yaml-language-server: $schema=job.schema.json)");
  command->callback([&chosen, plugins] {
    chosen = [plugins] {
      for (const std::string& file : *plugins) load_named_plugin(file);
      std::cout << job_schema() << "\n";
      return kExitDone;
    };
  });
}

}  // namespace trainctl
