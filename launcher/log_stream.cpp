// Follows one stream and its times from file to file.
#include "launcher/log_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "engine/base/error.h"
#include "launcher/log_tail.h"

namespace trainctl {
namespace {

using StreamFrame = TimesRecord::Kind;

constexpr size_t kStreamReadBytes = 1 << 18;
/// A longer line is returned in pieces.
constexpr size_t kLongestStreamLine = 1 << 24;
/// Number for an open file that is neither the current file nor a numbered one, because it was deleted.
constexpr int kGone = -1;

void close_stream_fd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

int64_t stream_time_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool is_same_file(int fd, const std::string& path) {
  struct stat open_one {
  }, named{};
  return fstat(fd, &open_one) == 0 && stat(path.c_str(), &named) == 0 && open_one.st_ino == named.st_ino &&
         open_one.st_dev == named.st_dev;
}

/// The time of the last record; for a log without times, the time of the file's last write.
int64_t last_ns(const LogFiles& files, int number) {
  const int fd = open(files.times_path(number).c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  std::optional<TimesRecord> last;
  if (fd >= 0 && fstat(fd, &status) == 0) {
    char bytes[kTimesRecordBytes];
    const int64_t at = status.st_size / ssize_t{kTimesRecordBytes} * ssize_t{kTimesRecordBytes} - sizeof bytes;
    if (at > 0 && pread(fd, bytes, sizeof bytes, at) == ssize_t{sizeof bytes}) {
      last = decode_times({bytes, sizeof bytes});
    }
  }
  if (fd >= 0) close(fd);
  if (last) return last->ns;
  if (stat(files.path(number).c_str(), &status) != 0) return 0;
  return status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

}  // namespace

LogStream::~LogStream() { close_file(); }

void LogStream::close_file() {
  close_stream_fd(file_);
  close_stream_fd(times_file_);
  times_ = TimesReader();
}

/// Opens the first file after those that have been read.
bool LogStream::open_next() {
  for (;;) {
    const std::vector<int> numbers = files_.numbers();
    const auto next = std::upper_bound(numbers.begin(), numbers.end(), after_);
    number_ = next == numbers.end() ? LogFiles::kCurrent : *next;
    file_ = open(files_.path(number_).c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0 && errno != ENOENT) {
      throw EnvError("cannot read " + files_.path(number_) + ": " + std::strerror(errno));
    }
    // The launcher may have begun another file in the meantime.
    if (number_ == LogFiles::kCurrent && files_.numbers() != numbers) {
      close_stream_fd(file_);
      continue;
    }
    if (file_ < 0 && number_ != LogFiles::kCurrent) {  // just deleted
      after_ = number_;
      continue;
    }
    offset_ = start_ = noted_ = 0;
    return file_ >= 0;
  }
}

void LogStream::open_times() {
  if (times_file_ >= 0 || number_ == kGone) return;
  times_file_ = open(files_.times_path(number_).c_str(), O_RDONLY | O_CLOEXEC);
  // If the log has just been numbered, its times are under that number, and these may be the next log's.
  if (number_ == LogFiles::kCurrent && !is_same_file(file_, files_.path(number_))) close_stream_fd(times_file_);
  times_ = TimesReader(times_file_);
}

std::optional<LogBlock> LogStream::next(bool grows) {
  for (;;) {
    if (file_ < 0 && !open_next()) return take_rest();
    open_times();
    const TimesRecord* record = times_.peek();
    if (record != nullptr && record->kind != StreamFrame::bytes) {
      if (auto rest = take_rest()) return rest;
      const auto kind = record->kind == StreamFrame::restart ? LogBlock::Kind::restart : LogBlock::Kind::lost;
      ns_ = std::max(ns_, record->ns);
      const LogBlock event{kind, ns_, record->value, {}};
      times_.pop();
      if (noted_ >= start_) return event;
      continue;
    }
    if (record != nullptr) {
      const int64_t to_come = record->value - (offset_ - static_cast<int64_t>(buffer_.size() - arrived_));
      const bool is_there = to_come > 0 && (arrived_ < buffer_.size() || read_more());
      ns_ = std::max(ns_, record->ns);
      if (!is_there) {
        noted_ = record->value;
        times_.pop();
        continue;
      }
      const size_t left = buffer_.size() - arrived_;
      const size_t part = to_come < static_cast<int64_t>(left) ? static_cast<size_t>(to_come) : left;
      if (auto lines = take_lines(arrived_ + part)) return lines;
      continue;
    }
    if (arrived_ == buffer_.size() && !read_more()) {
      if (leave_file()) continue;
      return grows ? std::nullopt : take_rest();
    }
    if (times_.peek() != nullptr) continue;  // they are written shortly after the bytes
    if (grows) ns_ = std::max(ns_, stream_time_ns());
    if (auto lines = take_lines(buffer_.size())) return lines;
  }
}

/// Called at the end of a file. Returns whether there is more to read, in this file or in the next one.
bool LogStream::leave_file() {
  if (number_ == LogFiles::kCurrent) {
    if (is_same_file(file_, files_.path(LogFiles::kCurrent))) return false;
    const std::vector<int> numbers = files_.numbers();
    const auto own = std::find_if(numbers.begin(), numbers.end(), [this](int number) {
      return number > after_ && is_same_file(file_, files_.path(number));
    });
    number_ = own == numbers.end() ? kGone : *own;
    return true;  // it may have grown before it was numbered
  }
  after_ = std::max(after_, number_);
  close_file();
  return open_next();
}

bool LogStream::read_more() {
  buffer_.erase(0, taken_);
  arrived_ -= taken_;
  taken_ = 0;
  const size_t kept = buffer_.size();
  for (bool again = true; again;) {
    again = false;
    buffer_.resize(kept + kStreamReadBytes);
    const ssize_t got = pread(file_, buffer_.data() + kept, kStreamReadBytes, offset_);
    buffer_.resize(kept + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0) offset_ += got;
    struct stat status {};
    if (got == 0 && fstat(file_, &status) == 0 && status.st_size < offset_) {
      offset_ = 0;  // it was truncated by hand: all that follows is new
      again = true;
    }
  }
  return buffer_.size() > kept;
}

/// Returns the lines that are complete within the first `arrived` bytes of the buffer.
std::optional<LogBlock> LogStream::take_lines(size_t arrived) {
  const char* begin = buffer_.data() + arrived_;
  const void* newline = memrchr(begin, '\n', arrived - arrived_);
  arrived_ = arrived;
  if (newline == nullptr) return arrived_ - taken_ < kLongestStreamLine ? std::nullopt : take_rest();
  const size_t end = static_cast<size_t>(static_cast<const char*>(newline) - buffer_.data()) + 1;
  const LogBlock block{LogBlock::Kind::lines, ns_, 0, std::string_view(buffer_).substr(taken_, end - taken_)};
  taken_ = end;
  return block;
}

/// Returns the rest of the buffer: an incomplete line that will not be completed.
std::optional<LogBlock> LogStream::take_rest() {
  if (taken_ == arrived_) return std::nullopt;
  const LogBlock block{LogBlock::Kind::lines, ns_, 0, std::string_view(buffer_).substr(taken_, arrived_ - taken_)};
  taken_ = arrived_;
  return block;
}

void LogStream::start_at(int number, int64_t offset) {
  if (number == LogFiles::kCurrent) {
    const std::vector<int> numbers = files_.numbers();
    after_ = numbers.empty() ? 0 : numbers.back();
  } else {
    after_ = number - 1;
  }
  if (open_next()) offset_ = start_ = offset;
}

void LogStream::skip_to_last(int64_t lines) {
  std::vector<int> numbers = files_.numbers();
  numbers.push_back(LogFiles::kCurrent);
  for (; !numbers.empty(); numbers.pop_back()) {
    const int fd = open(files_.path(numbers.back()).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    const auto offset = offset_of_last(fd, lines);
    close(fd);
    if (offset) return start_at(numbers.back(), *offset);
  }
}

void LogStream::skip_until(int64_t ns) {
  std::vector<int> numbers = files_.numbers();
  numbers.push_back(LogFiles::kCurrent);
  const auto first =
      std::find_if(numbers.begin(), numbers.end() - 1, [&](int number) { return last_ns(files_, number) >= ns; });
  start_at(*first, 0);
  if (file_ < 0) return;
  open_times();
  int64_t offset = 0;
  while (const TimesRecord* record = times_.peek()) {
    if (record->ns >= ns) break;
    if (record->kind == StreamFrame::bytes) offset = record->value;
    times_.pop();
  }
  close_stream_fd(times_file_);  // will be read from its beginning
  offset_ = start_ = start_of_line(file_, offset);
}

}  // namespace trainctl
