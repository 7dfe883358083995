// Simulates a disk that fails or dies at a chosen call, and the states that a loss of power may leave.
#include "tests/train/checkpoint/faulty_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace trainctl {

namespace fs = std::filesystem;

bool FaultyDisk::proceeds(const std::string& what) {
  const int call = calls_++;
  if (dies_at >= 0 && call >= dies_at) throw Death{};
  if (before_each) before_each();
  if (call != fails_at) return true;
  failed_ = what;
  errno = error;
  return false;
}

int FaultyDisk::open(const std::string& path, int flags) {
  if (!proceeds("open " + path)) return -1;
  const int fd = Disk::open(path, flags);
  if (fd < 0) return fd;
  paths_[fd] = path;
  if (flags & O_CREAT) ops_.push_back({Kind::create, path, {}, {}});
  return fd;
}

ssize_t FaultyDisk::pwrite(int fd, std::span<const uint8_t> bytes, int64_t at) {
  if (!proceeds("write " + paths_[fd])) return -1;
  const auto part = bytes.first(std::max<size_t>(1, bytes.size() - bytes.size() / 3));  // a write may be short
  ops_.push_back({Kind::write, paths_[fd], {}, {part.begin(), part.end()}, at});
  return Disk::pwrite(fd, part, at);
}

int FaultyDisk::fsync(int fd) {
  if (!proceeds("fsync " + paths_[fd])) return -1;
  ops_.push_back({Kind::sync, paths_[fd], {}, {}});
  return 0;  // lose_power() decides what is lost, and a real one would take its time
}

int FaultyDisk::close(int fd) {
  paths_.erase(fd);
  return Disk::close(fd);  // also from destructors of the dead
}

int FaultyDisk::mkdir(const std::string& path) {
  if (!proceeds("mkdir " + path)) return -1;
  ops_.push_back({Kind::mkdir, path, {}, {}});
  return Disk::mkdir(path);
}

int FaultyDisk::rename(const std::string& from, const std::string& to) {
  if (!proceeds("rename " + from)) return -1;
  ops_.push_back({Kind::rename, from, to, {}});
  return Disk::rename(from, to);
}

int FaultyDisk::unlink(const std::string& path) {
  if (!proceeds("unlink " + path)) return -1;
  ops_.push_back({Kind::unlink, path, {}, {}});
  return Disk::unlink(path);
}

int FaultyDisk::rmdir(const std::string& path) {
  if (!proceeds("rmdir " + path)) return -1;
  ops_.push_back({Kind::rmdir, path, {}, {}});
  return Disk::rmdir(path);
}

bool FaultyDisk::is_durable(size_t op) const {
  const Op& it = ops_[op];
  const std::string named = it.kind == Kind::rename ? it.to : it.path;
  const std::string synced = it.kind == Kind::write ? it.path : fs::path(named).parent_path().string();
  return std::any_of(ops_.begin() + static_cast<std::ptrdiff_t>(op), ops_.end(),
                     [&](const Op& later) { return later.kind == Kind::sync && later.path == synced; });
}

void FaultyDisk::lose_power(const std::string& from, const std::string& to, std::mt19937& random) const {
  const auto moved = [&](const std::string& path) {
    return path.starts_with(from) ? to + path.substr(from.size()) : path;
  };
  for (size_t i = 0; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    if (!op.path.starts_with(from) || (!is_durable(i) && random() % 2 == 0)) continue;
    const std::string path = moved(op.path);
    if (op.kind == Kind::mkdir) (void)::mkdir(path.c_str(), 0777);
    const int flags = op.kind == Kind::create ? O_WRONLY | O_CREAT | O_TRUNC : O_WRONLY;
    const int fd = op.kind == Kind::create || op.kind == Kind::write ? ::open(path.c_str(), flags, 0666) : -1;
    if (fd >= 0 && !op.bytes.empty() && ::pwrite(fd, op.bytes.data(), op.bytes.size(), op.at) < 0) std::abort();
    if (fd >= 0) ::close(fd);
    if (op.kind == Kind::rename) (void)::rename(path.c_str(), moved(op.to).c_str());
    if (op.kind == Kind::unlink) (void)::unlink(path.c_str());
    if (op.kind == Kind::rmdir) (void)::rmdir(path.c_str());
  }
}

}  // namespace trainctl
