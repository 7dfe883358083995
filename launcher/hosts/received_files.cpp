// Files of ranks on other hosts, written here piece by piece.
#include "launcher/hosts/received_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "engine/base/machine_limits.h"

namespace trainctl::hosts {

/// Writes a piece. Links are not followed. Returns false on a full disk. Returns true without writing if the file
/// cannot be opened for another reason.
bool ReceivedFiles::put(const Piece& piece, int& error) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(piece.path).parent_path(), ignored);
  const int fd = ::open(piece.path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  error = errno;
  if (fd < 0) return error != ENOSPC && error != EDQUOT && error != EIO;
  std::string_view left = piece.bytes;
  off_t offset = piece.offset;
  bool is_written = !piece.begins || ftruncate(fd, offset) == 0;
  while (is_written && !left.empty()) {
    const ssize_t put = pwrite(fd, left.data(), left.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    is_written = put > 0;
    if (!is_written) break;
    left.remove_prefix(static_cast<size_t>(put));
    offset += put;
  }
  error = errno;
  ::close(fd);
  return is_written;
}

void ReceivedFiles::take(const std::string& path, int64_t offset, std::string_view bytes, bool begins) {
  Piece piece{path, offset, std::string(bytes), begins};
  int error = 0;
  if (kept_.empty() && put(piece, error)) return;
  if (kept_.empty())
    notice_("cannot write " + path + ": " + describe_errno(error) +
            "; files from other hosts are kept in memory until then");
  if (kept_bytes_ + bytes.size() > kMostKeptBytes) {
    if (!std::exchange(is_lossy_, true))
      notice_("too much data is waiting for the disk; files in the run's folder will have gaps");
    return;
  }
  kept_bytes_ += bytes.size();
  kept_.push_back(std::move(piece));
}

void ReceivedFiles::retry() {
  int error = 0;
  while (!kept_.empty() && put(kept_.front(), error)) {
    kept_bytes_ -= kept_.front().bytes.size();
    kept_.pop_front();
    if (kept_.empty()) notice_("files from other hosts are being written again");
  }
}

}  // namespace trainctl::hosts
