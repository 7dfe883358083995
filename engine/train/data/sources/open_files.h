// The files that a source reads at random. A set may have more shards than a process may open, so few are open at once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/train/files/input_file.h"

namespace trainctl {

class OpenFiles {
 public:
  explicit OpenFiles(std::vector<std::string> paths, size_t most = 64);

  size_t size() const { return files_.size(); }
  /// The name for messages. An object's address is shown without its query.
  const std::string& path(size_t file) const { return files_[file].shown; }
  /// The path or address by which the file is opened.
  const std::string& address(size_t file) const { return files_[file].path; }
  /// Any number of threads may call it and read. Throws EnvError if it cannot be opened, or its size has changed since
  /// it was first opened.
  std::shared_ptr<const InputFile> get(size_t file) const;
  int64_t memory_bytes() const { return memory_bytes_; }

 private:
  struct File {
    std::string path, shown;
    std::shared_ptr<const InputFile> open;  ///< null if it is closed
    int64_t bytes = -1;                     ///< when it was first opened
    uint64_t last_use = 0;
  };

  std::shared_ptr<const InputFile> keep(size_t file, std::shared_ptr<const InputFile> opened) const;

  mutable std::mutex mutex_;
  mutable std::vector<File> files_;
  mutable std::vector<size_t> open_;
  mutable uint64_t uses_ = 0;
  size_t most_;
  int64_t memory_bytes_ = 0;
};

}  // namespace trainctl
