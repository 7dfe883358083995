// Detects data written to the files of a folder, so that it can be sent elsewhere.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace trainctl::hosts {

class FileWatch {
 public:
  /// `path` is relative to the folder. `offset` 0: the file is new or has been replaced.
  using OnBytes = std::function<void(const std::string& path, int64_t offset, std::string_view bytes)>;

  explicit FileWatch(std::string folder) : folder_(std::move(folder)) {}

  /// Ignores the current contents of an existing file.
  void skip(const std::string& path);
  /// Reports what was written since the last call, in pieces of at most 512 KiB, until `is_full`. Links are not
  /// followed. Returns whether everything was reported.
  bool look(const OnBytes& on_bytes, const std::function<bool()>& is_full);

 private:
  struct Seen {
    ino_t inode = 0;
    int64_t bytes = 0;
    int64_t changed_ns = 0;
  };
  std::string folder_;
  std::map<std::string, Seen> seen_;
};

}  // namespace trainctl::hosts
