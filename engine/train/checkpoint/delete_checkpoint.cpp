// Deletes the directory of a checkpoint.
#include "engine/train/checkpoint/delete_checkpoint.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/checkpoint/manifest.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

void require_gone(int result, const std::string& path) {
  if (result != 0 && errno != ENOENT)
    throw EnvError(fmt::format("{}: cannot be deleted: {}", path, std::strerror(errno)));
}

}  // namespace

void delete_checkpoint(const std::string& directory, Disk& disk) {
  const std::string manifest = directory + "/" + std::string(kManifestName);
  require_gone(disk.unlink(manifest), manifest);
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  fs::directory_iterator listing(directory, error);
  for (; !error && listing != fs::directory_iterator(); listing.increment(error)) entries.push_back(*listing);
  if (error && error != std::errc::no_such_file_or_directory)
    throw EnvError(fmt::format("{}: cannot be listed: {}", directory, error.message()));
  for (const fs::directory_entry& entry : entries) {
    const std::string path = entry.path();
    if (entry.is_directory(error) && !entry.is_symlink(error))
      delete_checkpoint(path, disk);
    else
      require_gone(disk.unlink(path), path);
  }
  require_gone(disk.rmdir(directory), directory);
}

}  // namespace trainctl
