// Archives of log folders.
#include "launcher/tar_gz.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kNameBytes = 100, kPrefixBytes = 155;
constexpr int64_t kLargestOctal = (int64_t{1} << 33) - 1;
constexpr const char* kLevel = "wb4";  // training goes on beside us

/// A header of zeros and text; numbers are octal digits.
class Header {
 public:
  void text(size_t at, std::string_view value) { std::copy(value.begin(), value.end(), block_.begin() + at); }
  void octal(size_t at, int digits, int64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "%0*llo", digits, static_cast<long long>(value));
    this->text(at, text);
  }
  void base_256(size_t at, size_t bytes, int64_t value) {
    for (size_t i = bytes; i-- > 0; value >>= 8) block_[at + i] = static_cast<char>(value & 0xff);
    block_[at] = static_cast<char>(0x80);
  }
  void checksum() {
    text(148, "        ");
    unsigned sum = 0;
    for (const char c : block_) sum += static_cast<unsigned char>(c);
    char digits[8];
    std::snprintf(digits, sizeof digits, "%06o", sum);
    text(148, std::string_view(digits, 7));
  }
  const char* data() const { return block_.data(); }

 private:
  std::array<char, kBlock> block_{};
};

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

TarGz::TarGz(std::string path) : path_(std::move(path)) {
  // A file without a name is gone even when we are killed.
  fd_ = open(folder_of(path_).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    temporary_ = path_ + ".XXXXXX";
    fd_ = mkostemp(temporary_.data(), O_CLOEXEC);
    if (fd_ < 0) temporary_.clear();
  }
  if (fd_ < 0) fail();
  gz_ = gzdopen(dup(fd_), kLevel);
  if (gz_ == nullptr) fail();
  gzbuffer(static_cast<gzFile>(gz_), 1 << 17);
}

TarGz::~TarGz() {
  if (gz_ != nullptr) gzclose(static_cast<gzFile>(gz_));
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void TarGz::fail() { throw EnvError("cannot write " + path_ + ": " + std::strerror(errno)); }

void TarGz::put(const void* bytes, size_t size) {
  if (size > 0 && gzwrite(static_cast<gzFile>(gz_), bytes, static_cast<unsigned>(size)) <= 0) fail();
}

void TarGz::pad(int64_t size) {
  static constexpr char kZeros[kBlock] = {};
  const size_t over = static_cast<size_t>(size) % kBlock;
  if (over != 0) put(kZeros, kBlock - over);
}

void TarGz::header(const std::string& name, int64_t size, int64_t seconds) {
  Header header;
  std::string prefix, last = name;
  if (name.size() > kNameBytes) {
    const size_t slash = name.find('/', name.size() - kNameBytes - 1);
    if (slash == std::string::npos || slash > kPrefixBytes) throw EnvError("the name is too long for a tar: " + name);
    prefix = name.substr(0, slash);
    last = name.substr(slash + 1);
  }
  header.text(0, last);
  header.octal(100, 7, 0644);
  header.octal(108, 7, 0);
  header.octal(116, 7, 0);
  if (size <= kLargestOctal) {
    header.octal(124, 11, size);
  } else {
    header.base_256(124, 12, size);
  }
  header.octal(136, 11, std::clamp<int64_t>(seconds, 0, kLargestOctal));
  header.text(156, "0");
  header.text(257, std::string_view("ustar\00000", 8));
  header.text(345, prefix);
  header.checksum();
  put(header.data(), kBlock);
}

void TarGz::add_text(const std::string& name, std::string_view text) {
  header(name, static_cast<int64_t>(text.size()), std::time(nullptr));
  put(text.data(), text.size());
  pad(static_cast<int64_t>(text.size()));
}

void TarGz::add_file(const std::string& name, const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return;
  struct stat status {};
  if (file < 0 || fstat(file, &status) != 0) throw EnvError("cannot read " + path + ": " + std::strerror(errno));
  try {
    header(name, status.st_size, status.st_mtim.tv_sec);
    std::string block(1 << 18, '\0');
    for (int64_t left = status.st_size; left > 0;) {
      const size_t part = std::min(block.size(), static_cast<size_t>(left));
      const ssize_t got = read(file, block.data(), part);
      if (got < 0 && errno == EINTR) continue;
      // Somebody cut it off: the header has promised more.
      if (got <= 0) std::fill(block.begin(), block.end(), '\0');
      const size_t size = got <= 0 ? part : static_cast<size_t>(got);
      put(block.data(), size);
      left -= static_cast<int64_t>(size);
    }
    pad(status.st_size);
  } catch (...) {
    close(file);
    throw;
  }
  close(file);
}

int64_t TarGz::finish() {
  static constexpr char kEnd[2 * kBlock] = {};
  put(kEnd, sizeof kEnd);
  if (gzclose(static_cast<gzFile>(std::exchange(gz_, nullptr))) != Z_OK || fsync(fd_) != 0) fail();
  if (temporary_.empty()) {
    temporary_ = path_ + ".XXXXXX";
    const int placeholder = mkostemp(temporary_.data(), O_CLOEXEC);
    if (placeholder < 0) fail();
    close(placeholder);
    unlink(temporary_.c_str());  // its name is ours
    const std::string own = "/proc/self/fd/" + std::to_string(fd_);
    if (linkat(AT_FDCWD, own.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0) fail();
  }
  struct stat status {};
  if (rename(temporary_.c_str(), path_.c_str()) != 0 || fstat(fd_, &status) != 0) fail();
  temporary_.clear();
  return status.st_size;
}

}  // namespace trainctl
