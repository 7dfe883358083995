// One output stream of one rank: the rank writes into a pipe, the launcher drains it without blocking.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace trainctl {

/// Allows this process and its future children to open the pipes and log files of that many ranks.
void allow_files_of_logs(size_t ranks);

class LogPipe {
 public:
  using OnBytes = std::function<void(std::string_view bytes, int64_t ns)>;  ///< ns: unix time of arrival
  using OnLine = std::function<void(std::string_view line)>;

  /// `on_bytes` receives all bytes, `on_line` each whole line without its newline. Throws EnvError.
  explicit LogPipe(OnBytes on_bytes, OnLine on_line = {});
  LogPipe(const LogPipe&) = delete;
  LogPipe& operator=(const LogPipe&) = delete;
  ~LogPipe();

  /// The end that the rank inherits; close ours once the rank has it.
  int write_end() const { return write_end_; }
  void close_write_end();
  /// Readable when there is something to drain, or all writers have closed their ends.
  int read_end() const { return read_end_; }

  /// Reads the pipe's contents, at most one pipe size, so that a rank with much output does not delay the others.
  /// Returns the bytes read.
  int64_t drain();
  /// Returns whether all writers have closed the pipe and its contents have been read.
  bool ended() const { return ended_; }
  /// Called when the rank has ended: reads the rest and closes, even if the last line is incomplete. Does not wait for
  /// processes that the rank started, which may still hold the pipe and write to it.
  void finish();

  /// The last bytes, up to 16 KiB; whole lines unless they are too long, without the last newline.
  std::string tail(int lines) const;

 private:
  void split_lines(std::string_view bytes);
  void keep_tail(std::string_view bytes);

  OnBytes on_bytes_;
  OnLine on_line_;
  std::string tail_;
  std::string partial_line_;
  int read_end_ = -1, write_end_ = -1;
  bool ended_ = false;
};

/// Current unix time in nanoseconds.
int64_t unix_ns();

}  // namespace trainctl
