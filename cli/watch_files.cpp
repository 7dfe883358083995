// Ends a command that reads a job's data set if the file system stops responding.
#include "cli/watch_files.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "cli/render/terminal.h"

namespace trainctl {

std::unique_ptr<FileWatch> watch_files(double timeout_seconds) {
  return std::make_unique<FileWatch>(timeout_seconds, [](const EnvError& error) {
    std::cerr << paint(2, Paint::red, "error: ") << error.what() << "\n";
    std::cout.flush();
    std::fflush(nullptr);
    std::_Exit(kExitEnv);  // no destructor: a thread is in a call that does not end
  });
}

}  // namespace trainctl
