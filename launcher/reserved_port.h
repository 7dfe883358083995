// A TCP port reserved for another process to listen on.
#pragma once

#include <cstdint>

namespace trainctl {

/// Binds a free port with SO_REUSEADDR and never listens. While the object lives, the kernel does not hand out that
/// port as a free one, on any address of the host; a program that binds it by number, with SO_REUSEADDR as servers do,
/// gets it and can listen. So two jobs that start at the same moment never get the same port, however long they take
/// to listen; a port that was bound, noted and closed again does not guarantee that.
class ReservedPort {
 public:
  /// Throws EnvError.
  ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  ~ReservedPort();

  uint16_t port() const { return port_; }

 private:
  int fd_ = -1;
  uint16_t port_ = 0;
};

}  // namespace trainctl
