// Log files: appending, rotating, and surviving a full disk.
#include "launcher/log_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/base/error.h"

namespace trainctl {
namespace {

using WriterFrame = TimesRecord::Kind;

void close_writer_fd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

int64_t written_size_of(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_size : 0;
}

bool ends_within_line(int fd, int64_t size) {
  char last = '\n';
  return size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

/// Returns the bytes written, fewer than requested on failure (errno).
size_t write_all(int fd, std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = write(fd, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    done += static_cast<size_t>(put);
  }
  return done;
}

}  // namespace

LogWriter::LogWriter(LogFiles files, const LogLimits& limits, int restart, int64_t ns)
    : files_(std::move(files)), limits_(limits), restart_(restart) {
  const std::vector<int> there = files_.numbers();
  next_number_ = there.empty() ? 1 : there.back() + 1;
  mkdir(files_.times_directory().c_str(), 0777);
  if (!open_current()) {
    error_ = errno;
    gap_ = true;
  }
  if (restart_ == 0) return;
  // Two attempts never share a line.
  if (file_ >= 0 && file_mid_line_ && write_all(file_, "\n") == 1) ++size_;
  file_mid_line_ = false;
  if (size_ > 0) pending_times_ += encode({WriterFrame::bytes, ns, size_});
  pending_times_ += encode({WriterFrame::restart, ns, restart_});
}

LogWriter::~LogWriter() {
  close_writer_fd(file_);
  close_writer_fd(times_);
}

bool LogWriter::open_current() {
  file_ = open(files_.path(LogFiles::kCurrent).c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) return false;
  size_ = written_size_of(file_);
  file_mid_line_ = ends_within_line(file_, size_);
  times_ = open(files_.times_path(LogFiles::kCurrent).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  constexpr int64_t kRecord = kTimesRecordBytes;
  times_size_ = times_ < 0 ? 0 : written_size_of(times_) / kRecord * kRecord;
  return true;
}

void LogWriter::write(std::string_view bytes, int64_t ns) {
  if (bytes.empty()) return;
  const bool ends_mid_line = bytes.back() != '\n';
  if (gap_ && mid_line_) {  // the beginning of this line is lost, so the rest is dropped too
    const size_t line = std::min(bytes.find('\n'), bytes.size() - 1) + 1;
    lose(static_cast<int64_t>(line));
    bytes.remove_prefix(line);
  }
  while (!bytes.empty()) {
    if (full()) begin_next_file(ns);
    const std::string_view part = bytes.substr(0, fits(bytes));
    const size_t done = put(part, ns);
    if (done > 0) note_bytes(ns);
    if (done < part.size()) {
      lose(static_cast<int64_t>(bytes.size() - done));
      break;
    }
    bytes.remove_prefix(done);
  }
  mid_line_ = ends_mid_line;
}

bool LogWriter::full() const {
  if (limits_.file_bytes <= 0 || size_ < limits_.file_bytes) return false;
  return !file_mid_line_ || size_ >= 2 * limits_.file_bytes;
}

/// Returns how many of `bytes` go into this file: all, or up to the end of the line that fills it.
size_t LogWriter::fits(std::string_view bytes) const {
  const int64_t room = limits_.file_bytes - size_;
  if (limits_.file_bytes <= 0 || room > static_cast<int64_t>(bytes.size())) return bytes.size();
  const size_t newline = bytes.find('\n', room > 0 ? static_cast<size_t>(room - 1) : 0);
  return newline == std::string_view::npos ? bytes.size() : newline + 1;
}

/// Returns the bytes written; error_ is 0 if these are all.
size_t LogWriter::put(std::string_view bytes, int64_t ns) {
  if (file_ < 0 && !open_current()) {
    error_ = errno;
    gap_ = true;
    return 0;
  }
  // After a loss the file may end within a line that will never be completed.
  if (gap_ && file_mid_line_) {
    if (write_all(file_, "\n") == 0) {
      error_ = errno;
      return 0;
    }
    file_mid_line_ = false;
    pending_times_ += encode({WriterFrame::bytes, ns, ++size_});
  }
  const size_t done = write_all(file_, bytes);
  error_ = done < bytes.size() ? errno : 0;
  gap_ = error_ != 0;
  if (done > 0) file_mid_line_ = bytes[done - 1] != '\n';
  size_ = written_size_of(file_);  // the user may have truncated it to make room
  return done;
}

void LogWriter::note_bytes(int64_t ns) {
  if (times_ < 0) return;
  std::string records = times_size_ == 0 ? std::string(kTimesMagic) : "";
  records += pending_times_;
  if (!gap_ && unnoted_lost_bytes_ > 0) records += encode({WriterFrame::lost, ns, unnoted_lost_bytes_});
  records += encode({WriterFrame::bytes, ns, size_});
  // The next record overwrites one that a full disk cut off.
  if (pwrite(times_, records.data(), records.size(), times_size_) != static_cast<ssize_t>(records.size())) return;
  times_size_ += static_cast<int64_t>(records.size());
  pending_times_.clear();
  if (!gap_) unnoted_lost_bytes_ = 0;
}

/// Gives the current file its number, opens an empty one, and deletes the oldest files beyond the limit.
void LogWriter::begin_next_file(int64_t ns) {
  const int number = next_number_++;
  std::rename(files_.times_path(LogFiles::kCurrent).c_str(), files_.times_path(number).c_str());
  if (std::rename(files_.path(LogFiles::kCurrent).c_str(), files_.path(number).c_str()) != 0) {
    std::rename(files_.times_path(number).c_str(), files_.times_path(LogFiles::kCurrent).c_str());
    limits_.file_bytes = 0;  // keep writing to this file
    return;
  }
  close_writer_fd(file_);
  close_writer_fd(times_);
  size_ = 0;
  file_mid_line_ = false;
  pending_times_ = restart_ > 0 ? encode({WriterFrame::restart, ns, restart_}) : "";
  if (!open_current()) {
    error_ = errno;
    gap_ = true;
  }
  for (const int old : files_.numbers()) {
    if (old > number - std::max(limits_.files, 1) + 1) break;
    unlink(files_.path(old).c_str());
    unlink(files_.times_path(old).c_str());
  }
}

void LogWriter::skip(int64_t bytes, bool mid_line) {
  lose(bytes);
  gap_ = true;
  mid_line_ = mid_line;
}

void LogWriter::lose(int64_t bytes) {
  lost_bytes_ += bytes;
  unnoted_lost_bytes_ += bytes;
}

}  // namespace trainctl
