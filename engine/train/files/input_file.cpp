// A file, or an object of a store (s3://, gs://, https://), that is read at given places.
#include "engine/train/files/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/file_wait.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/files/store/objects.h"
#include "engine/train/files/store/remote_file.h"

namespace trainctl {
namespace {

/// The limit lets a slow disk complete each call in time.
constexpr size_t kMostAtOnce = size_t{64} << 20;

[[noreturn]] void fail_to_read(const std::string& path, const std::string& why) {
  throw EnvError(fmt::format("{}: cannot be read: {}", path, why));
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  if (is_url(path_)) {
    remote_ = std::make_unique<object_store::RemoteFile>(path_);
    path_ = shown_url(path_);
    bytes_ = remote_->bytes();
    return;
  }
  const FileWait wait(path_);
  fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not wait
  struct stat file {};
  const int error = fd_ < 0 || fstat(fd_, &file) != 0 ? errno : 0;
  const bool regular = S_ISREG(file.st_mode);
  if (error == 0 && regular) {
    bytes_ = file.st_size;
    return;
  }
  if (fd_ >= 0) close(fd_);
  fail_to_read(path_, error != 0 ? std::strerror(error) : "it is not a regular file");
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

std::string InputFile::identity() const { return remote_ ? remote_->identity() : ""; }

void InputFile::read(int64_t at, std::span<uint8_t> to) const {
  if (remote_) {
    if (const int64_t left = bytes_ - at; left < static_cast<int64_t>(to.size()))
      fail_to_read(path_, fmt::format("it ends at byte {}, but {} more bytes are expected", with_commas(bytes_),
                                      with_commas(static_cast<int64_t>(to.size()) - left)));
    return remote_->read(at, to);
  }
  while (!to.empty()) {
    const FileWait wait(path_);
    const ssize_t got = pread(fd_, to.data(), std::min(to.size(), kMostAtOnce), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_to_read(path_, fmt::format("byte {}: {}", at, std::strerror(errno)));
    if (got == 0)
      fail_to_read(path_, fmt::format("it ends at byte {}, but {} more bytes are expected", with_commas(at),
                                      with_commas(static_cast<int64_t>(to.size()))));
    to = to.subspan(static_cast<size_t>(got));
    at += got;
  }
}

void InputFile::expect(int64_t at, int64_t bytes) const {
  if (remote_) return remote_->expect(at, std::min(bytes, bytes_ - at));
  const FileWait wait(path_);
  posix_fadvise(fd_, at, bytes, POSIX_FADV_WILLNEED);
}

bool path_exists(const std::string& path) {
  if (is_url(path)) return object_store::object_exists(path);
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string read_whole_file(const std::string& path) {
  const InputFile file(path);
  std::string text(static_cast<size_t>(file.bytes()), '\0');
  file.read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
  return text;
}

}  // namespace trainctl
