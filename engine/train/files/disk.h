// The system calls by which a checkpoint reaches the disk. Tests replace them with calls to a disk that is full, is
// broken, or loses what was not synced.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trainctl {

/// Each function is the call of its name: -1 and errno if it fails. Any thread may call any of them.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual int open(const std::string& path, int flags);
  virtual ssize_t pwrite(int fd, std::span<const uint8_t> bytes, int64_t at);
  virtual int fsync(int fd);
  virtual int use_cache(int fd);  ///< fcntl: takes O_DIRECT away
  virtual int close(int fd);
  virtual int mkdir(const std::string& path);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int unlink(const std::string& path);
  virtual int rmdir(const std::string& path);
};

/// The calls of the system.
Disk& real_disk();

/// Tells whether written bytes stay in the system's cache of files. Bypassing it saves the processor a copy, and is
/// faster on many disks; the bytes in memory and their place in the file should begin at multiples of 4096.
enum class FileCache { used, bypassed };

/// Creates (or empties) a file, and writes it in any order.
class DiskFile {
 public:
  /// Throws EnvError with path and reason, as from every function below.
  explicit DiskFile(std::string path, Disk& disk = real_disk(), FileCache cache = FileCache::used);
  ~DiskFile();  ///< closes; the file stays
  DiskFile(DiskFile&& other) noexcept;
  DiskFile& operator=(DiskFile&&) = delete;

  void write(int64_t at, std::span<const uint8_t> bytes);
  /// Makes sure that the data are on the disk, not only in the system's memory, and closes the file.
  void sync_and_close();
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  Disk* disk_;
  int fd_ = -1;
  bool is_direct_ = false;
};

/// Syncs the names in a directory. Throws EnvError.
void sync_directory(const std::string& path, Disk& disk = real_disk());

/// Makes `text` the content of a file and syncs it. Throws EnvError.
void write_synced(const std::string& path, std::string_view text, Disk& disk = real_disk());
/// The same through a temporary file, `path`.part, so that a reader finds either the old text or the new one. After an
/// error that file is deleted.
void replace_synced(const std::string& path, std::string_view text, Disk& disk = real_disk());

}  // namespace trainctl
