// Identifies the user at the other end of a local socket.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

namespace trainctl::hosts {

/// True if the peer is a process of this user. The folder of an agent's socket keeps others out, unless XDG_CACHE_HOME
/// is a folder that others can write: then they could wait there for a launcher's token, or send messages first.
inline bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace trainctl::hosts
