// A file's bytes, read through the page cache: ranks of one host share them, and memory pressure drops them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace trainctl {

class MappedFile {
 public:
  MappedFile() = default;
  /// EnvError with the reason if the file cannot be opened. It must not become shorter while it is mapped: the system
  /// ends a process that reads behind its end.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace trainctl
