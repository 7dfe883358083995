// trainctl checkpoint: one file per subcommand, each a row of the table.
#pragma once

#include <array>

#include "cli/commands/commands.h"

namespace trainctl {

void add_checkpoint_list(CLI::App& checkpoint, Action& chosen);
void add_checkpoint_show(CLI::App& checkpoint, Action& chosen);
void add_checkpoint_verify(CLI::App& checkpoint, Action& chosen);
void add_checkpoint_diff(CLI::App& checkpoint, Action& chosen);
void add_checkpoint_merge(CLI::App& checkpoint, Action& chosen);
void add_checkpoint_export(CLI::App& checkpoint, Action& chosen);
void add_checkpoint_import(CLI::App& checkpoint, Action& chosen);
void add_checkpoint_maps(CLI::App& checkpoint, Action& chosen);

inline constexpr std::array kCheckpointCommands = {add_checkpoint_list,   add_checkpoint_show,  add_checkpoint_verify,
                                                   add_checkpoint_diff,   add_checkpoint_merge, add_checkpoint_export,
                                                   add_checkpoint_import, add_checkpoint_maps};

}  // namespace trainctl
