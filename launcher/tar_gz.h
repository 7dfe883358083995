// Writes .tar.gz files with libarchive: ustar headers, and a pax header before an entry that does not fit in one (a
// long name, 8 GiB or more). The file appears under its name only when it is complete.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct archive;
struct archive_entry;

namespace trainctl {

class TarGz {
 public:
  /// Throws EnvError if the folder of `path` is not writable.
  explicit TarGz(std::string path);
  TarGz(const TarGz&) = delete;
  TarGz& operator=(const TarGz&) = delete;
  /// Without finish() no file is left.
  ~TarGz();

  void add_text(const std::string& name, std::string_view text);
  /// Adds the file with its current size, even if it grows meanwhile; a file that no longer exists is skipped.
  void add_file(const std::string& name, const std::string& path);
  /// Completes the archive and gives it its name, replacing an existing file. Returns its size. Throws EnvError.
  int64_t finish();

 private:
  void header(const std::string& name, int64_t size, int64_t seconds);
  void put(const void* bytes, size_t size);
  [[noreturn]] void fail(int error);

  std::string path_;
  std::string temporary_;  ///< empty: the file has no name yet
  int fd_ = -1;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
  std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry_;
};

}  // namespace trainctl
