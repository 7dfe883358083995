// trainctl's command line. Each command is a file of commands/.
#pragma once

namespace trainctl {

/// Runs the command of main's arguments. Returns the exit code; errors are printed.
int run_command_line(int argc, char** argv);

}  // namespace trainctl
