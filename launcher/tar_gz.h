// Writes .tar.gz files by libarchive: ustar headers, and a pax header before an entry that does not fit in one (a long
// name, 8 GiB and more). The file appears under its name when it is whole, and not before.
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
  /// Throws EnvError where nothing can be written beside `path`.
  explicit TarGz(std::string path);
  TarGz(const TarGz&) = delete;
  TarGz& operator=(const TarGz&) = delete;
  /// Without finish() nothing is left.
  ~TarGz();

  void add_text(const std::string& name, std::string_view text);
  /// As many bytes as it has now, though it may grow; a file that is gone is left out.
  void add_file(const std::string& name, const std::string& path);
  /// Ends it and gives it its name, in place of a file that had it. Returns its size. Throws EnvError.
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
