// The files that a host still has to receive from the launcher, which sends them in pieces as fast as the agent
// confirms them.
#include "launcher/hosts/file_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace trainctl::hosts {
namespace {

/// Files are sent in pieces of kPieceBytes bytes, while fewer than kMostUnconfirmedBytes bytes are unconfirmed.
constexpr size_t kMostUnconfirmedBytes = 4 << 20, kPieceBytes = 512 << 10;

}  // namespace

void FileQueue::add_file(const std::string& name, const std::string& path) {
  files_.push_back({Message::Kind::give, name, path});
}

void FileQueue::add_copy(const Copy& copy) {
  for (const Copy::File& file : copy.files)
    files_.push_back({Message::Kind::copy, copy.name + (file.name.empty() ? "" : "/" + file.name), file.path,
                      file.is_executable ? 1 : 0});
  files_.push_back({Message::Kind::keep, copy.name, ""});
}

void FileQueue::send_some(HostLink& link, uint32_t attempt) {
  std::string piece;
  while (!files_.empty() && link.unconfirmed_bytes() < kMostUnconfirmedBytes) {
    File& file = files_.front();
    if (file.kind == Message::Kind::keep) {
      link.send({Message::Kind::keep, attempt, -1, 0, file.name, ""});
      files_.pop_front();
      continue;
    }
    piece.resize(kPieceBytes);
    const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd < 0 ? -1 : pread(fd, piece.data(), piece.size(), file.offset);
    const std::string fault = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    if (got < 0) return link.lose("cannot receive " + file.path + ", since reading it failed: " + fault);
    piece.resize(static_cast<size_t>(got));
    if (got > 0 || file.offset == 0) link.send({file.kind, attempt, file.rank, file.offset, file.name, piece});
    file.offset += got;
    if (got == 0) files_.pop_front();
  }
}

}  // namespace trainctl::hosts
