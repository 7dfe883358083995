// Draining a rank's output.
#include "launcher/log_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/error.h"

namespace trainctl {
namespace {

/// Room for what a rank writes between two visits.
constexpr int kPipeBytes = 1 << 18;
/// A line longer than this reaches on_line in pieces; the file has it whole.
constexpr size_t kLongestLine = 1 << 16;

void close_fd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

}  // namespace

LogPipe::LogPipe(std::string path, OnLine on_line) : on_line_(std::move(on_line)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw EnvError(std::string("cannot make a pipe: ") + std::strerror(errno));
  read_end_ = ends[0];
  write_end_ = ends[1];
  fcntl(read_end_, F_SETFL, O_NONBLOCK);
  fcntl(read_end_, F_SETPIPE_SZ, kPipeBytes);  // best effort
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) {
    const int error = errno;
    close_fd(read_end_);
    close_fd(write_end_);
    throw EnvError("cannot write " + path + ": " + std::strerror(error));
  }
}

LogPipe::~LogPipe() {
  close_fd(read_end_);
  close_fd(write_end_);
  close_fd(file_);
}

void LogPipe::close_write_end() { close_fd(write_end_); }

int64_t LogPipe::drain() {
  if (read_end_ < 0) return 0;
  static thread_local char buffer[1 << 16];
  int64_t total = 0;
  // At most one pipe's worth a visit, so that one chatty rank does not keep the others waiting.
  while (total < kPipeBytes) {
    const ssize_t got = read(read_end_, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    total += got;
    store({buffer, static_cast<size_t>(got)});
    if (on_line_) split_lines({buffer, static_cast<size_t>(got)});
  }
  return total;
}

void LogPipe::finish() {
  close_write_end();
  while (drain() > 0) {
  }
  if (!partial_line_.empty() && on_line_) on_line_(partial_line_);
  partial_line_.clear();
  close_fd(read_end_);
  close_fd(file_);
}

void LogPipe::store(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(file_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      if (write_error_ == 0) write_error_ = errno;
      lost_bytes_ += static_cast<int64_t>(bytes.size());
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(put));
  }
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
