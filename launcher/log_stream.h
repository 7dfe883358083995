// Reads one stream of one rank back from all its files, even while it grows: whole lines, with the time at which
// each was complete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/log_files.h"
#include "launcher/log_times.h"

namespace trainctl {

struct LogBlock {
  enum class Kind : uint8_t {
    lines,    ///< `text`: lines that were complete at `ns`
    restart,  ///< the blocks that follow were written after the `value`-th restart
    lost,     ///< `value` bytes are missing at this position
  };
  Kind kind = Kind::lines;
  int64_t ns = 0;  ///< unix; never decreases within a stream; 0: unknown
  int64_t value = 0;
  std::string_view text;  ///< each line with its newline, except an unfinished last one
};

class LogStream {
 public:
  explicit LogStream(LogFiles files) : files_(std::move(files)) {}
  LogStream(const LogStream&) = delete;
  LogStream& operator=(const LogStream&) = delete;
  ~LogStream();

  /// Starts at the last `lines` lines, or at the first line that was complete at `ns` or later, instead of at the
  /// beginning. Call it before next().
  void skip_to_last(int64_t lines);
  void skip_until(int64_t ns);

  /// The next block; nullopt at the end. `grows`: a launcher still writes, so an incomplete line is left for later.
  /// The text is valid until the next call.
  std::optional<LogBlock> next(bool grows);

 private:
  bool open_next();
  void open_times();
  void close_file();
  void start_at(int number, int64_t offset);
  bool leave_file();
  bool read_more();
  std::optional<LogBlock> take_lines(size_t arrived);
  std::optional<LogBlock> take_rest();

  LogFiles files_;
  int file_ = -1, times_file_ = -1;
  int number_ = LogFiles::kCurrent;  ///< number of the open file
  int after_ = 0;                    ///< files up to this number have been read
  TimesReader times_;
  int64_t start_ = 0;   ///< where reading this file began
  int64_t noted_ = 0;   ///< the last offset in the times
  int64_t offset_ = 0;  ///< offset in the file of the end of buffer_
  std::string buffer_;
  size_t taken_ = 0, arrived_ = 0;  ///< bytes of buffer_: returned; known to have arrived
  int64_t ns_ = 0;
};

}  // namespace trainctl
