// Options of other launchers and trainers (torchrun, mpirun, msrun, deepspeed, accelerate, srun), and what to write
// here in their place.
#pragma once

#include <string>

#include "cli/command_words.h"

namespace trainctl {

/// "write launch.ranks=4", with the option's value; "" for an option that makes no sense for `command`.
std::string our_spelling(const CLI::App& command, const UnknownOption& option);

}  // namespace trainctl
