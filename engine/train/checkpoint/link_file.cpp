// Adds a file of an earlier checkpoint to a later checkpoint too, so that each checkpoint is complete by itself.
#include "engine/train/checkpoint/link_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "engine/base/error.h"

namespace trainctl {
namespace {

void copy_file(int source, const std::string& from, const std::string& to, Disk& disk) {
  DiskFile file(to, disk);
  std::vector<uint8_t> block(size_t{1} << 20);
  for (int64_t at = 0;;) {
    const ssize_t count = ::read(source, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw EnvError(fmt::format("{}: cannot be read: {}", from, std::strerror(errno)));
    if (count == 0) break;
    file.write(at, std::span(block).first(static_cast<size_t>(count)));
    at += count;
  }
  file.sync_and_close();
}

}  // namespace

void link_or_copy(const std::string& from, const std::string& to, Disk& disk) {
  if (::link(from.c_str(), to.c_str()) == 0) return;
  const int source = disk.open(from, O_RDONLY);
  if (source < 0) throw EnvError(fmt::format("{}: cannot be opened: {}", from, std::strerror(errno)));
  try {
    copy_file(source, from, to, disk);
  } catch (...) {
    disk.close(source);
    throw;
  }
  disk.close(source);
}

}  // namespace trainctl
