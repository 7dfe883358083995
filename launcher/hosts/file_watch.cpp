// Detects data written to the files of a folder, so that it can be sent elsewhere.
#include "launcher/hosts/file_watch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

namespace trainctl::hosts {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = 512 << 10;

int64_t changed_ns(const struct stat& info) {
  return static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

void FileWatch::skip(const std::string& path) {
  struct stat info {};
  if (lstat((folder_ + "/" + path).c_str(), &info) == 0)
    seen_[path] = {info.st_ino, static_cast<int64_t>(info.st_size), changed_ns(info)};
}

bool FileWatch::look(const OnBytes& on_bytes, const std::function<bool()>& is_full) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder_, error), end; it != end && !error; it.increment(error))
    if (it->is_regular_file(error) && !it->is_symlink(error)) paths.push_back(fs::relative(it->path(), folder_, error));
  std::sort(paths.begin(), paths.end());
  std::vector<char> buffer(kPiece);
  for (const std::string& path : paths) {
    if (is_full()) return false;
    const int fd = open((folder_ + "/" + path).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat info {};
    if (fd < 0) continue;
    Seen& seen = seen_[path];
    const bool readable = fstat(fd, &info) == 0;
    const bool is_new = seen.inode != info.st_ino || info.st_size < seen.bytes ||
                        (info.st_size == seen.bytes && changed_ns(info) != seen.changed_ns);
    if (readable && is_new) {
      seen = {info.st_ino, 0, 0};
      on_bytes(path, 0, "");
    }
    while (readable && seen.bytes < info.st_size && !is_full()) {
      const auto most = std::min(buffer.size(), static_cast<size_t>(info.st_size - seen.bytes));
      const ssize_t got = pread(fd, buffer.data(), most, seen.bytes);
      if (got <= 0) break;
      on_bytes(path, seen.bytes, {buffer.data(), static_cast<size_t>(got)});
      seen.bytes += got;
    }
    seen.changed_ns = changed_ns(info);
    const bool whole = !readable || seen.bytes >= info.st_size;
    close(fd);
    if (!whole) return false;
  }
  return true;
}

}  // namespace trainctl::hosts
