// Finds the file of this program, so that it can be started again.
#include "launcher/own_program.h"

#include <filesystem>

#include "engine/base/error.h"

namespace trainctl {

std::string own_program() {
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return path;
  throw EnvError("/proc/self/exe cannot be read (" + error.message() +
                 "): trainctl needs /proc to find its own program and the processes of its ranks\n"
                 "  mount it: mount -t proc proc /proc");
}

}  // namespace trainctl
