// Writes one stream's log: files of bounded size that end at a line's end, and the times of their bytes. A full disk
// loses lines, but never stops the training.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/log_files.h"
#include "launcher/log_times.h"

namespace trainctl {

class LogWriter {
 public:
  /// Appends to existing files. `restart`: number of restarts of the ranks so far. A file that cannot be opened sets
  /// error() and is retried by each write.
  LogWriter(LogFiles files, const LogLimits& limits, int restart, int64_t ns);
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  ~LogWriter();

  /// Appends bytes that arrived at `ns`. A file that has reached its size continues to the end of the line, or to
  /// twice its size if no line ends.
  void write(std::string_view bytes, int64_t ns);

  /// Records that `bytes` bytes were lost before they arrived here. `mid_line`: the last of them was not a newline.
  void skip(int64_t bytes, bool mid_line);

  /// errno of the last write (ENOSPC: disk full); 0: no error. After a failure writing resumes with the next line that
  /// can be written.
  int error() const { return error_; }
  int64_t lost_bytes() const { return lost_bytes_; }  ///< total

 private:
  bool open_current();
  bool full() const;
  size_t fits(std::string_view bytes) const;
  size_t put(std::string_view bytes, int64_t ns);
  void note_bytes(int64_t ns);
  void begin_next_file(int64_t ns);
  void lose(int64_t bytes);

  LogFiles files_;
  LogLimits limits_;
  int restart_;
  int next_number_;
  int file_ = -1, times_ = -1;
  int64_t size_ = 0;                               ///< bytes in the file
  int64_t times_size_ = 0;                         ///< bytes of whole records
  std::string pending_times_;                      ///< not yet written
  bool file_mid_line_ = false, mid_line_ = false;  ///< whether the rank's last byte in the file is not a newline
  int error_ = 0;
  bool gap_ = false;                                 ///< bytes were lost since the last write
  int64_t lost_bytes_ = 0, unnoted_lost_bytes_ = 0;  ///< unnoted: not yet in the times
};

}  // namespace trainctl
