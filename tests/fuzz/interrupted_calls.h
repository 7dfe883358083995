// Repeats system calls that a signal interrupted. libFuzzer's timer sends SIGALRM every few seconds, and its handler
// does not restart calls.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdlib>

namespace trainctl {

/// The result of `call`, repeated while it fails with EINTR.
template <class Call>
ssize_t uninterrupted(const Call& call) {
  ssize_t result;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

/// Connects or aborts. An interrupted connect() continues in the background, so it is awaited rather than repeated.
inline void connect_or_abort(int socket, const sockaddr* to, socklen_t size) {
  if (connect(socket, to, size) == 0) return;
  if (errno != EINTR) std::abort();
  pollfd connected{.fd = socket, .events = POLLOUT, .revents = 0};
  if (uninterrupted([&] { return poll(&connected, 1, -1); }) != 1) std::abort();
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) std::abort();
}

}  // namespace trainctl
