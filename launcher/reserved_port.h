// A TCP port reserved for another process to listen on.
#pragma once

#include <cstdint>

namespace trainctl {

/// Binds a free port with SO_REUSEADDR, and never listens. While the object exists, the kernel does not
/// assign that port to a process that asks for any free port, on any address of the host. A program that binds the port
/// by number with SO_REUSEADDR, as servers do, gets it and can listen. Two jobs that start at the same moment therefore
/// never get the same port, however long they take to listen. Binding a port, noting its number and closing it again
/// would not guarantee that.
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
