// The system calls by which a checkpoint reaches the disk.
#include "engine/train/files/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"

namespace trainctl {

int Disk::open(const std::string& path, int flags) { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }
ssize_t Disk::pwrite(int fd, std::span<const uint8_t> bytes, int64_t at) {
  return ::pwrite(fd, bytes.data(), bytes.size(), at);
}
int Disk::fsync(int fd) { return ::fsync(fd); }
int Disk::use_cache(int fd) { return ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_DIRECT); }
int Disk::close(int fd) { return ::close(fd); }
int Disk::mkdir(const std::string& path) { return ::mkdir(path.c_str(), 0777); }
int Disk::rename(const std::string& from, const std::string& to) { return ::rename(from.c_str(), to.c_str()); }
int Disk::unlink(const std::string& path) { return ::unlink(path.c_str()); }
int Disk::rmdir(const std::string& path) { return ::rmdir(path.c_str()); }

Disk& real_disk() {
  static Disk disk;
  return disk;
}

DiskFile::DiskFile(std::string path, Disk& disk, FileCache cache) : path_(std::move(path)), disk_(&disk) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW;
  if (cache == FileCache::bypassed) fd_ = disk_->open(path_, kFlags | O_DIRECT);
  is_direct_ = fd_ >= 0;
  if (!is_direct_ && (cache == FileCache::used || errno == EINVAL)) fd_ = disk_->open(path_, kFlags);
  if (fd_ < 0) fail("cannot be created");
}

DiskFile::DiskFile(DiskFile&& other) noexcept
    : path_(std::move(other.path_)),
      disk_(other.disk_),
      fd_(std::exchange(other.fd_, -1)),
      is_direct_(other.is_direct_) {}

DiskFile::~DiskFile() {
  if (fd_ >= 0) disk_->close(fd_);
}

void DiskFile::fail(const char* what) const {
  throw EnvError(fmt::format("{}: {}: {}", path_, what, describe_errno(errno)));
}

void DiskFile::write(int64_t at, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = disk_->pwrite(fd_, bytes, at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL && std::exchange(is_direct_, false) && disk_->use_cache(fd_) == 0)
      continue;                        // the end of a file, or a disk of larger blocks
    if (written == 0) errno = ENOSPC;  // of a file this has no other cause
    if (written <= 0) fail("cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(written));
    at += written;
  }
}

void DiskFile::sync_and_close() {
  // After a failed fsync the system may have dropped the data: trying again would only hide that.
  if (disk_->fsync(fd_) != 0) fail("cannot be synced to the disk");
  const int fd = std::exchange(fd_, -1);
  if (disk_->close(fd) != 0 && errno != EINTR) fail("cannot be closed");
}

void sync_directory(const std::string& path, Disk& disk) {
  const int fd = disk.open(path, O_RDONLY | O_DIRECTORY);
  // EINVAL: a file system that keeps no names to be synced, as object stores.
  const bool failed = fd < 0 || (disk.fsync(fd) != 0 && errno != EINVAL);
  const int error = errno;
  if (fd >= 0) disk.close(fd);
  if (failed)
    throw EnvError(fmt::format("{}: the directory cannot be synced to the disk: {}", path, describe_errno(error)));
}

void write_synced(const std::string& path, std::string_view text, Disk& disk) {
  DiskFile file(path, disk);
  file.write(0, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  file.sync_and_close();
}

void replace_synced(const std::string& path, std::string_view text, Disk& disk) {
  const std::string part = path + ".part";
  try {
    write_synced(part, text, disk);
    if (disk.rename(part, path) != 0)
      throw EnvError(fmt::format("{}: cannot be replaced: {}", path, describe_errno(errno)));
  } catch (const EnvError&) {
    disk.unlink(part);
    throw;
  }
}

}  // namespace trainctl
