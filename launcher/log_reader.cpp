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
constexpr int64_t kLongestTail = 16384;

/// Where the last `lines` lines of an open file begin. An empty last line does not count.
int64_t offset_of_last(int fd, int64_t lines) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return 0;
  std::array<char, kBlock> block;
  int64_t newlines = -1;  // the one that ends the last line is not counted
  for (int64_t end = status.st_size; end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - kBlock);
    const ssize_t got = pread(fd, block.data(), static_cast<size_t>(end - begin), begin);
    if (got != end - begin) return 0;
    if (end == status.st_size && block[static_cast<size_t>(got) - 1] != '\n') ++newlines;
    for (int64_t i = got - 1; i >= 0; --i) {
      if (block[static_cast<size_t>(i)] == '\n' && ++newlines == lines) return begin + i + 1;
    }
    end = begin;
  }
  return 0;
}

}  // namespace

LogFile::~LogFile() {
  if (fd_ >= 0) close(fd_);
}

bool LogFile::open_file() {
  if (fd_ < 0) fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  return fd_ >= 0;
}

void LogFile::skip_to_last(int64_t lines) {
  if (open_file()) lseek(fd_, offset_of_last(fd_, lines), SEEK_SET);
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

std::string tail_of_file(const std::string& path, int64_t lines) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  struct stat status {};
  std::string text;
  if (fstat(fd, &status) == 0) {
    const int64_t begin = std::max(offset_of_last(fd, lines), status.st_size - kLongestTail);
    text.resize(static_cast<size_t>(status.st_size - begin));
    const ssize_t got = pread(fd, text.data(), text.size(), begin);
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  }
  close(fd);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::vector<int> parse_ranks(std::string_view text) {
  constexpr int kMostRanks = 1 << 20;
  std::vector<int> ranks;
  const char* at = text.data();
  const char* end = at + text.size();
  const auto number = [&] {
    int value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value < 0 || value >= kMostRanks) {
      throw std::invalid_argument("'" + std::string(text) + "' is no list of ranks; expected one like 0,3-5");
    }
    at = next;
    return value;
  };
  for (;;) {
    const int first = number();
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
    }
    if (last < first) throw std::invalid_argument("'" + std::string(text) + "': a range goes from low to high");
    for (int rank = first; rank <= last; ++rank) ranks.push_back(rank);
    if (at == end) break;
    if (*at++ != ',')
      throw std::invalid_argument("'" + std::string(text) + "' is no list of ranks; expected one like 0,3-5");
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace trainctl
