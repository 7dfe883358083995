// One output stream of one rank on its way to its file: the rank writes into a pipe, the launcher
// drains it without waiting. A disk that is full loses lines, never the training.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace trainctl {

class LogPipe {
 public:
  using OnLine = std::function<void(std::string_view line)>;

  /// Opens the pipe and creates `path`. `on_line` gets each whole line, without its newline. Throws EnvError.
  explicit LogPipe(std::string path, OnLine on_line = {});
  LogPipe(const LogPipe&) = delete;
  LogPipe& operator=(const LogPipe&) = delete;
  ~LogPipe();

  /// The end that the rank inherits; close ours once it has it.
  int write_end() const { return write_end_; }
  void close_write_end();

  /// Moves what is there into the file. Returns the bytes moved.
  int64_t drain();
  /// The rank has ended: moves the rest and closes, the last line whole or not.
  void finish();

  /// errno of the first write to the file that failed (ENOSPC: disk full); 0: none.
  int write_error() const { return write_error_; }
  int64_t lost_bytes() const { return lost_bytes_; }

 private:
  void store(std::string_view bytes);
  void split_lines(std::string_view bytes);

  OnLine on_line_;
  std::string partial_line_;
  int read_end_ = -1, write_end_ = -1, file_ = -1;
  int write_error_ = 0;
  int64_t lost_bytes_ = 0;
};

}  // namespace trainctl
