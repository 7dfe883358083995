// Log files, forward and from the end.
#include "launcher/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <stdexcept>

namespace trainctl {
namespace {

constexpr int64_t kBlock = 1 << 16;
constexpr int64_t kMostAtOnce = 1 << 22;

}  // namespace

LogFile::~LogFile() {
  if (fd_ >= 0) close(fd_);
}

bool LogFile::open_file() {
  if (fd_ < 0) fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  return fd_ >= 0;
}

void LogFile::skip_to_last(int64_t lines) {
  if (open_file()) lseek(fd_, offset_of_last(fd_, lines).value_or(0), SEEK_SET);
}

bool LogFile::read(const OnLine& on_line) {
  if (!open_file()) return false;
  std::array<char, kBlock> block;
  bool any = false;
  for (int64_t total = 0; total < kMostAtOnce;) {
    const ssize_t got = ::read(fd_, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    total += got;
    partial_line_.append(block.data(), static_cast<size_t>(got));
    size_t at = 0;
    for (size_t end; (end = partial_line_.find('\n', at)) != std::string::npos; at = end + 1) {
      on_line(std::string_view(partial_line_).substr(at, end - at));
      any = true;
    }
    partial_line_.erase(0, at);
  }
  return any;
}

void LogFile::finish(const OnLine& on_line) {
  while (read(on_line)) {
  }
  if (!partial_line_.empty()) on_line(partial_line_);
  partial_line_.clear();
}

}  // namespace trainctl
