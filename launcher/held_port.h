// A TCP port for somebody else to listen on: ours until then, and nobody's by accident.
#pragma once

#include <cstdint>

namespace trainctl {

/// Binds a free port with SO_REUSEADDR and never listens. While it lives the kernel gives that port to nobody who
/// asks for any port, on no address of the host; a program that binds it by its number, with SO_REUSEADDR as
/// servers do, gets it and listens. Unlike a port that was bound, noted and closed again, two jobs that
/// start at the same moment never get the same one, however long they take to listen.
class HeldPort {
 public:
  /// Throws EnvError.
  HeldPort();
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;
  ~HeldPort();

  uint16_t port() const { return port_; }

 private:
  int fd_ = -1;
  uint16_t port_ = 0;
};

}  // namespace trainctl
