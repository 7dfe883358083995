// Writes all of a text to a pipe or file.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace trainctl {

/// False, with errno, if the other side has closed or the disk is full; a part may be written then.
inline bool put_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return true;
}

}  // namespace trainctl
