// Maps a file into memory, so that the ranks of a host share its bytes through the page cache.
#include "engine/train/data/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file_wait.h"
#include "engine/base/url.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

/// A signal handler reads it while others write: `begin` is set last and cleared first.
struct Listed {
  std::atomic<bool> is_taken = false;
  std::atomic<const uint8_t*> begin = nullptr;
  size_t size = 0;
  std::array<char, 256> path{};
};
std::array<Listed, 256> listed;

void list(std::span<const uint8_t> bytes, const std::string& path) {
  for (Listed& one : listed) {
    if (one.is_taken.exchange(true)) continue;
    one.size = bytes.size();
    one.path[path.copy(one.path.data(), one.path.size() - 1)] = 0;
    one.begin = bytes.data();
    return;
  }
}

void unlist(const uint8_t* begin) {
  for (Listed& one : listed) {
    if (one.begin != begin) continue;
    one.begin = nullptr;
    one.is_taken = false;
  }
}

}  // namespace

const char* mapped_file_at(const void* address) {
  const auto* at = static_cast<const uint8_t*>(address);
  for (const Listed& one : listed)
    if (const uint8_t* begin = one.begin; begin != nullptr && at >= begin && at < begin + one.size)
      return one.path.data();
  return nullptr;
}

MappedFile::MappedFile(const std::string& path) {
  if (is_url(path)) {
    const InputFile object(path);
    const auto size = static_cast<size_t>(object.bytes());
    if (size == 0) return;
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw EnvError(fmt::format("{}: cannot be kept in memory", object.path()));
    bytes_ = {static_cast<const uint8_t*>(memory), size};
    list(bytes_, object.path());
    object.read(0, {static_cast<uint8_t*>(memory), size});
    return;
  }
  const FileWait wait(path);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not wait
  struct stat file {};
  int error = fd < 0 || fstat(fd, &file) != 0 ? errno : 0;
  if (error == 0 && file.st_size > 0) {  // an empty file has no mapping
    void* memory = mmap(nullptr, static_cast<size_t>(file.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
      error = errno;
    else
      bytes_ = {static_cast<const uint8_t*>(memory), static_cast<size_t>(file.st_size)};
  }
  const bool regular = error != 0 || S_ISREG(file.st_mode);
  if (fd >= 0) close(fd);
  if (!regular) throw EnvError(path + ": cannot be read: it is not a regular file");
  if (error != 0) throw EnvError(fmt::format("{}: cannot be read: {}", path, std::strerror(error)));
  if (!bytes_.empty()) list(bytes_, path);
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  unlist(bytes_.data());
  munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace trainctl
