// A file, or an object of a store (s3://, gs://, https://), that is read at given places. Any number of threads may
// read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace trainctl {

namespace object_store {
class RemoteFile;
}

class InputFile {
 public:
  /// Throws EnvError if it cannot be opened, or is not a regular file.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// The name for messages. An object's address is shown without its query.
  const std::string& path() const { return path_; }
  /// The version of an object, which names its content; empty for a file.
  std::string identity() const;
  int64_t bytes() const { return bytes_; }  ///< when it was opened
  /// Fills `to` with the bytes from `at` on. Throws EnvError, also if the file ends before.
  void read(int64_t at, std::span<uint8_t> to) const;
  /// Asks the system to read these bytes in the background.
  void expect(int64_t at, int64_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
  std::unique_ptr<object_store::RemoteFile> remote_;  ///< not null: it is an object
};

/// Returns whether there is such a file, folder or object. Throws EnvError if a store refuses to say.
bool path_exists(const std::string& path);

std::string read_whole_file(const std::string& path);

}  // namespace trainctl
