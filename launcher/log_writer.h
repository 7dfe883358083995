// The writing side of one stream's log: files of a bounded size that end with a line, and the times of their
// bytes. A disk that is full loses lines, never the training.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/log_files.h"
#include "launcher/log_times.h"

namespace trainctl {

class LogWriter {
 public:
  /// Goes on behind what is there already. `restart`: of the ranks, 0 at first. Throws EnvError.
  LogWriter(LogFiles files, const LogLimits& limits, int restart, int64_t ns);
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  ~LogWriter();

  /// Appends what came at `ns`. A file that has its size goes on to the end of the line, or to twice its size where
  /// no line ends.
  void write(std::string_view bytes, int64_t ns);

  /// errno of the last write where it failed (ENOSPC: disk full); 0: all is well. After a failure it begins again
  /// with the next line that can be written.
  int error() const { return error_; }
  int64_t lost_bytes() const { return lost_bytes_; }  ///< in all

 private:
  bool open_current();
  bool full() const;
  size_t fits(std::string_view bytes) const;
  size_t put(std::string_view bytes, int64_t ns);
  void note_bytes(int64_t ns);
  void begin_next_file(int64_t ns);
  void lose(size_t bytes);

  LogFiles files_;
  LogLimits limits_;
  int restart_;
  int next_number_;
  int file_ = -1, times_ = -1;
  int64_t size_ = 0;                               ///< of the file
  int64_t times_size_ = 0;                         ///< of whole records
  std::string pending_times_;                      ///< not yet written
  bool file_mid_line_ = false, mid_line_ = false;  ///< the file's last byte, the rank's last byte is no newline
  int error_ = 0;
  int64_t lost_bytes_ = 0, unnoted_lost_bytes_ = 0;  ///< of which the times do not know
};

}  // namespace trainctl
