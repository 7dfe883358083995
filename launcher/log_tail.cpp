// Reads the last lines of a log, backwards from its end.
#include "launcher/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "launcher/log_files.h"

namespace trainctl {
namespace {

constexpr int64_t kTailBlock = 1 << 16;
constexpr int64_t kLongestTail = 16384;

int64_t size_of(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_size : 0;
}

/// The offset of the last newline before `end`; -1: none.
int64_t newline_before(int fd, int64_t end) {
  char block[kTailBlock];
  while (end > 0) {
    const int64_t begin = std::max<int64_t>(0, end - kTailBlock);
    const ssize_t got = pread(fd, block, static_cast<size_t>(end - begin), begin);
    if (got != end - begin) return -1;
    if (const void* at = memrchr(block, '\n', static_cast<size_t>(got))) {
      return begin + (static_cast<const char*>(at) - block);
    }
    end = begin;
  }
  return -1;
}

/// The last bytes of a file, whole lines unless they are too long.
std::string last_bytes(const std::string& path, int64_t& lines, int64_t most) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  const int64_t size = size_of(fd);
  const int64_t begin = std::max(offset_of_last(fd, lines).value_or(0), size - most);
  std::string text(static_cast<size_t>(std::max<int64_t>(0, size - begin)), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), begin);
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  if (begin > 0) lines = 0;
  close(fd);
  return text;
}

}  // namespace

std::optional<int64_t> offset_of_last(int fd, int64_t& lines) {
  const int64_t size = size_of(fd);
  if (lines <= 0) return size;
  char block[kTailBlock];
  for (int64_t end = size, begin; end > 0; end = begin) {
    begin = std::max<int64_t>(0, end - kTailBlock);
    const ssize_t got = pread(fd, block, static_cast<size_t>(end - begin), begin);
    if (got != end - begin) return 0;
    // A newline at the very end belongs to the last line.
    size_t left = static_cast<size_t>(end == size ? got - 1 : got);
    while (const void* at = memrchr(block, '\n', left)) {
      left = static_cast<size_t>(static_cast<const char*>(at) - block);
      if (--lines == 0) return begin + static_cast<int64_t>(left) + 1;
    }
  }
  if (size > 0 && --lines == 0) return 0;
  return std::nullopt;
}

int64_t start_of_line(int fd, int64_t offset) { return newline_before(fd, offset) + 1; }

std::string tail_of_file(const std::string& path, int64_t lines) {
  std::string text = last_bytes(path, lines, kLongestTail);
  const size_t slash = path.rfind('/');
  if (lines > 0 && slash != std::string::npos) {
    const LogFiles files{path.substr(0, slash), path.substr(slash + 1)};
    const std::vector<int> numbers = files.numbers();
    const int64_t room = kLongestTail - static_cast<int64_t>(text.size());
    if (!numbers.empty()) text = last_bytes(files.path(numbers.back()), lines, room) + text;
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace trainctl
