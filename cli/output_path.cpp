// Checks that a file can be written, by access(2), which also detects read-only file systems.
#include "cli/output_path.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/output_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& option, const std::string& path, const std::string& why) {
  throw EnvError(option + ": cannot write " + path + ": " + why);
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : "."; }

}  // namespace

void require_writable_file(const std::string& path, const std::string& option) {
  std::error_code error;
  if (path.empty()) throw SpecError({}, option, "the file name is empty", "e.g. " + option + "=trace.json");
  if (fs::is_directory(path, error)) fail(option, path, "it is a folder");
  require_no_link(path);
  if (fs::exists(path, error)) {
    if (access(path.c_str(), W_OK) != 0) fail(option, path, std::strerror(errno));
    return;
  }
  const fs::path folder = folder_of(path);
  if (!fs::is_directory(folder, error)) fail(option, path, "the folder " + folder.string() + " does not exist");
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    fail(option, path, std::strerror(errno) + std::string(" in the folder ") + folder.string());
}

void require_writable_folder(const std::string& path, const std::string& option) {
  std::error_code error;
  fs::path folder = path.empty() ? fs::path(".") : fs::path(path);
  while (!fs::exists(folder, error) && folder_of(folder) != folder) folder = folder_of(folder);
  if (!fs::is_directory(folder, error)) fail(option, path, folder.string() + " is not a folder");
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    fail(option, path, std::strerror(errno) + std::string(" in the folder ") + folder.string());
}

}  // namespace trainctl
