// Drains a rank's output.
#include "launcher/log_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/open_files.h"

namespace trainctl {
namespace {

/// Capacity of the pipe between two reads, and size of the writes.
constexpr int64_t kPipeBytes = 1 << 18;
/// A longer line reaches on_line in pieces; the file has it whole.
constexpr size_t kLongestLine = 1 << 16;
constexpr size_t kTailBytes = 1 << 14;

void close_fd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

}  // namespace

void allow_files_of_logs(size_t ranks) {
  constexpr rlim_t kFilesPerRank = 6;  // two streams, each with pipe, log and times
  constexpr rlim_t kOtherFiles = 256;
  allow_open_files(kFilesPerRank * ranks + kOtherFiles);
}

int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

LogPipe::LogPipe(OnBytes on_bytes, OnLine on_line) : on_bytes_(std::move(on_bytes)), on_line_(std::move(on_line)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw EnvError(std::string("cannot create a pipe: ") + describe_errno(errno));
  read_end_ = ends[0];
  write_end_ = ends[1];
  fcntl(read_end_, F_SETFL, O_NONBLOCK);
  fcntl(read_end_, F_SETPIPE_SZ, static_cast<int>(kPipeBytes));  // best effort
}

LogPipe::~LogPipe() {
  close_fd(read_end_);
  close_fd(write_end_);
}

void LogPipe::close_write_end() { close_fd(write_end_); }

int64_t LogPipe::drain() {
  static thread_local char buffer[kPipeBytes];
  int64_t total = 0;
  while (!ended_ && total < kPipeBytes) {
    const ssize_t got = read(read_end_, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    ended_ = got == 0;
    if (got <= 0) break;
    total += got;
    const std::string_view bytes(buffer, static_cast<size_t>(got));
    keep_tail(bytes);
    if (on_bytes_) on_bytes_(bytes, unix_ns());
    if (on_line_) split_lines(bytes);
  }
  return total;
}

void LogPipe::finish() {
  close_write_end();
  const int64_t capacity = fcntl(read_end_, F_GETPIPE_SZ);
  for (int64_t total = 0, moved; total < capacity && (moved = drain()) > 0; total += moved) {
  }
  if (!partial_line_.empty() && on_line_) on_line_(partial_line_);
  partial_line_.clear();
  ended_ = true;
  close_fd(read_end_);
}

void LogPipe::keep_tail(std::string_view bytes) {
  tail_ += bytes.substr(bytes.size() - std::min(bytes.size(), 2 * kTailBytes));
  if (tail_.size() > 2 * kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
}

std::string LogPipe::tail(int lines) const {
  std::string_view text(tail_);
  text.remove_prefix(text.size() - std::min(text.size(), kTailBytes));
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  for (size_t at = text.size(); at > 0 && lines > 0;) {
    const size_t newline = text.rfind('\n', at - 1);
    if (newline == std::string_view::npos) break;
    at = newline;
    if (--lines == 0) text.remove_prefix(newline + 1);
  }
  return std::string(text);
}

void LogPipe::split_lines(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    if (newline == std::string_view::npos) {
      partial_line_ += bytes;
      if (partial_line_.size() < kLongestLine) return;
      on_line_(partial_line_);
      partial_line_.clear();
      return;
    }
    if (partial_line_.empty()) {
      on_line_(bytes.substr(0, newline));
    } else {
      partial_line_ += bytes.substr(0, newline);
      on_line_(partial_line_);
      partial_line_.clear();
    }
    bytes.remove_prefix(newline + 1);
  }
}

}  // namespace trainctl
