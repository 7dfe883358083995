// Reading ranks' logs back: whole lines, from the end, and while they grow.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/log_selection.h"
#include "launcher/log_tail.h"

namespace trainctl {

/// One log file, read forward; it may grow meanwhile.
class LogFile {
 public:
  using OnLine = std::function<void(std::string_view line)>;

  explicit LogFile(std::string path) : path_(std::move(path)) {}
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  ~LogFile();

  /// Starts at the last `lines` lines in place of the beginning.
  void skip_to_last(int64_t lines);
  /// Hands out the whole lines that have come, at most some 4 MiB of them. Whether there were any.
  bool read(const OnLine& on_line);
  /// The last line, where it has no newline yet: nothing more will come.
  void finish(const OnLine& on_line);

 private:
  bool open_file();

  std::string path_;
  std::string partial_line_;
  int fd_ = -1;
};

}  // namespace trainctl
