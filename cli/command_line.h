// trainctl's command line. Each command is a file of commands/.
#pragma once

namespace trainctl {

/// Parses main's arguments and runs the command that they name. Returns the exit code; errors are printed.
int run_command_line(int argc, char** argv);

}  // namespace trainctl
