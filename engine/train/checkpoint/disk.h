// The system calls by which a checkpoint reaches the disk. Tests put others in their place: a full disk, a broken one,
// one that loses what was not synced.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

namespace trainctl {

/// Each function is the call of its name: -1 and errno if it fails. Any thread may call any of them.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual int open(const std::string& path, int flags);
  virtual ssize_t pwrite(int fd, std::span<const uint8_t> bytes, int64_t at);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int mkdir(const std::string& path);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int unlink(const std::string& path);
  virtual int rmdir(const std::string& path);
};

/// The one that does them.
Disk& real_disk();

/// Creates (or empties) a file, and writes it in any order.
class DiskFile {
 public:
  /// EnvError with path and reason, as from every function below.
  explicit DiskFile(std::string path, Disk& disk = real_disk());
  ~DiskFile();  ///< closes; the file stays
  DiskFile(DiskFile&& other) noexcept;
  DiskFile& operator=(DiskFile&&) = delete;

  void write(int64_t at, std::span<const uint8_t> bytes);
  /// On the disk, not only in the system's memory, and closed.
  void sync_and_close();
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  Disk* disk_;
  int fd_ = -1;
};

/// Syncs the names in a directory. EnvError.
void sync_directory(const std::string& path, Disk& disk = real_disk());

}  // namespace trainctl
