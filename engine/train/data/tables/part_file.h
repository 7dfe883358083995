// A file that gets its name when it is complete.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trainctl {

class PartFile {
 public:
  /// `replace`: an existing file is replaced, else it is an error. Throws EnvError if it cannot be created.
  PartFile(std::string path, bool replace);
  ~PartFile();  ///< without finish() nothing is left
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  void write(std::span<const uint8_t> bytes);
  void write(std::string_view text) { write({reinterpret_cast<const uint8_t*>(text.data()), text.size()}); }
  int64_t bytes() const { return bytes_; }
  /// The name until finish(), for libraries that open files themselves.
  const std::string& part_path() const { return part_; }
  void finish();

 private:
  [[noreturn]] void fail() const;

  std::string path_, part_;
  bool replace_;
  int fd_ = -1;
  int64_t bytes_ = 0;
};

}  // namespace trainctl
