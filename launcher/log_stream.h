// One stream of one rank read back through all its files, while it may still grow: whole lines, with the time at
// which they were whole.
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
    lines,    ///< `text`: lines that were whole at `ns`
    restart,  ///< what follows was written after the `value`-th restart
    lost,     ///< here `value` bytes are missing
  };
  Kind kind = Kind::lines;
  int64_t ns = 0;  ///< unix; never goes back within a stream; 0: not known
  int64_t value = 0;
  std::string_view text;  ///< each line with its newline, but for one that never got one
};

class LogStream {
 public:
  explicit LogStream(LogFiles files) : files_(std::move(files)) {}
  LogStream(const LogStream&) = delete;
  LogStream& operator=(const LogStream&) = delete;
  ~LogStream();

  /// Starts at the last `lines` lines, or at the first line that was whole at `ns` or later, in place of the
  /// beginning. To be called first.
  void skip_to_last(int64_t lines);
  void skip_until(int64_t ns);

  /// What comes next; nothing where all that is there was read. `grows`: a launcher still writes, so that a line
  /// without its end is left for later. The text stays until the next call.
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
  int number_ = LogFiles::kCurrent;  ///< of the open file
  int after_ = 0;                    ///< the files up to this number have been read
  TimesReader times_;
  int64_t start_ = 0;   ///< where reading this file began
  int64_t noted_ = 0;   ///< the last offset that times spoke of
  int64_t offset_ = 0;  ///< in the file, of the end of buffer_
  std::string buffer_;
  size_t taken_ = 0, arrived_ = 0;  ///< in buffer_: handed out; known to have come
  int64_t ns_ = 0;
};

}  // namespace trainctl
