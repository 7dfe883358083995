// A file's bytes, read through the page cache: ranks of one host share them, and memory pressure drops them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace trainctl {

class MappedFile {
 public:
  MappedFile() = default;
  /// Throws EnvError with the reason if the file cannot be opened. If its disk fails later, or it becomes shorter, the
  /// system ends the process with SIGBUS: mapped_file_at says to the handler which file it was.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::span<const uint8_t> bytes_;
};

/// The path of the mapped file with this address, up to 255 characters; null if there is none, or more files are mapped
/// than are kept in the list. For signal handlers: it neither locks nor allocates.
const char* mapped_file_at(const void* address);

}  // namespace trainctl
