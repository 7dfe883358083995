// A file that gets its name when it is complete.
#include "engine/train/data/tables/part_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"

namespace trainctl {

PartFile::PartFile(std::string path, bool replace)
    : path_(std::move(path)), part_(fmt::format("{}.{}.part", path_, getpid())), replace_(replace) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path_, ignored)) throw EnvError("cannot write " + path_ + ": it is a folder");
  if (!replace_ && std::filesystem::exists(path_, ignored))
    throw EnvError(path_ + " already exists; replace it with --force, or choose another name with -o");
  fd_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail();
}

PartFile::~PartFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(part_.c_str());
}

void PartFile::fail() const { throw EnvError("cannot write " + path_ + ": " + describe_errno(errno)); }

void PartFile::write(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail();
    bytes = bytes.subspan(static_cast<size_t>(written));
    bytes_ += written;
  }
}

void PartFile::finish() {
  if (fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) fail();
  if (rename(part_.c_str(), path_.c_str()) != 0) fail();
  close(std::exchange(fd_, -1));
}

}  // namespace trainctl
