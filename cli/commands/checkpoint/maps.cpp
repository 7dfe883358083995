// trainctl checkpoint maps: lists the built-in name maps.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/commands/checkpoint/checkpoint_commands.h"
#include "cli/text/name_maps.h"
#include "engine/base/error.h"

namespace trainctl {

void add_checkpoint_maps(CLI::App& checkpoint, Action& chosen) {
  auto name = std::make_shared<std::string>();
  auto* command = checkpoint.add_subcommand("maps", "List the name maps, or print one as a starting point");
  command->add_option("MAP", *name, "Map to print");
  command->footer(R"(Examples:
  trainctl checkpoint maps
  trainctl checkpoint maps gpt2 > my_map.yaml)");
  command->callback([&chosen, name] {
    chosen = [name] {
      if (!name->empty()) {
        std::cout << find_map(*name);
      } else {
        for (const std::string& each : map_names()) {
          const std::string_view text = find_map(each);
          std::cout << each << "  " << text.substr(2, text.find('\n') - 2) << "\n";
        }
      }
      return kExitDone;
    };
  });
}

}  // namespace trainctl
