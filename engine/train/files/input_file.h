// A file that is read at given places. Any number of threads may read.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace trainctl {

class InputFile {
 public:
  /// EnvError if it cannot be opened, or is no regular file.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  ///< when it was opened
  /// Fills `to` with the bytes from `at` on. EnvError, also if the file ends before.
  void read(int64_t at, std::span<uint8_t> to) const;
  /// Asks the system to read these bytes in the background.
  void expect(int64_t at, int64_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
};

std::string read_whole_file(const std::string& path);

}  // namespace trainctl
