// One output stream of one rank: the rank writes into a pipe, the launcher drains it into a log without blocking.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "launcher/log_writer.h"

namespace trainctl {

class LogPipe {
 public:
  using OnLine = std::function<void(std::string_view line)>;

  /// Opens the pipe and the log. `on_line` gets each whole line, without its newline. Throws EnvError.
  explicit LogPipe(LogFiles files, const LogLimits& limits = {}, int restart = 0, OnLine on_line = {});
  LogPipe(const LogPipe&) = delete;
  LogPipe& operator=(const LogPipe&) = delete;
  ~LogPipe();

  /// The end that the rank inherits; close ours once the rank has it.
  int write_end() const { return write_end_; }
  void close_write_end();
  /// Readable when there is something to drain, or all writers have closed their ends.
  int read_end() const { return read_end_; }

  /// Moves the pipe's contents into the log, at most one pipe size, so that a rank with much output does not delay
  /// the others. Returns the bytes moved.
  int64_t drain();
  /// All writers have closed the pipe, and its contents are in the log.
  bool ended() const { return ended_; }
  /// The rank has ended: moves the rest and closes, even if the last line is incomplete. Does not wait for processes
  /// that the rank started, which may still hold the pipe and write to it.
  void finish();

  const LogWriter& log() const { return writer_; }

 private:
  void split_lines(std::string_view bytes);

  LogWriter writer_;
  OnLine on_line_;
  std::string partial_line_;
  int read_end_ = -1, write_end_ = -1;
  bool ended_ = false;
};

}  // namespace trainctl
