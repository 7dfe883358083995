// A TCP port reserved for another process to listen on.
#include "launcher/reserved_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "engine/base/error.h"

namespace trainctl {

ReservedPort::ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  // Binds all addresses: another job's listener on one of them would block a listener on all.
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  const int yes = 1;
  auto* general = reinterpret_cast<sockaddr*>(&address);
  const bool bound = fd_ >= 0 && setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                     bind(fd_, general, size) == 0 && getsockname(fd_, general, &size) == 0;
  if (!bound) {
    const int error = errno;
    if (fd_ >= 0) close(fd_);
    throw EnvError(std::string("cannot find a free port: ") + std::strerror(error));
  }
  port_ = ntohs(address.sin_port);
}

ReservedPort::~ReservedPort() { close(fd_); }

}  // namespace trainctl
