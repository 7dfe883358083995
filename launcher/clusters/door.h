// How a process that a manager has started beside the launcher's is reached: it listens, and for each connection that
// has the job's token runs a script, as sshd would.
//
//   launcher ── dial ── TLS ── door ── sh -c SCRIPT ── relay ── agent (pod 1) ── ranks
//
//   request := "run " size "\n" script        then stdin and stdout of the script, raw
//            | "ping\n"                        the answer is "door\n"
//            | "end " code "\n"                the run is over: the door exits with `code`
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/hosts/transport.h"

namespace trainctl::clusters {

struct DoorAddress {
  std::string name;                    ///< of the host
  std::vector<std::string> addresses;  ///< each is tried; names are resolved at each try
  int port = 0;
};

/// A listening socket. `port` 0: any. Throws EnvError.
int listen_at(int port);
int port_of(int listener);
/// IPv4 addresses of this host, beside loopback.
std::vector<std::string> own_addresses();

/// Serves until the run is over; returns its exit code. SIGTERM does not end it: the launcher, which has had the same
/// signal, does, once the ranks have stopped. Variable kReachedAt tells scripts at which address they were reached.
int serve_door(int listener, const std::string& token);

/// Tries until a door answers, for `seconds`, at least once. Returns this host's address on the way there. Throws EnvError.
std::string await_door(const DoorAddress& door, const std::string& token, double seconds);
/// Tells it the end, once.
void end_door(const DoorAddress& door, const std::string& token, int code);

/// `trainctl dial`: stdin and stdout become those of `script` behind the door. Tries as await_door.
int dial(const DoorAddress& door, const std::string& token, const std::string& script);

/// Doors of other hosts by dial, and `own_name` by a shell of this host; `own_address`: of this one for the others. The
/// token goes to dial in kTokenVariable.
std::unique_ptr<hosts::Transport> door_transport(std::vector<DoorAddress> doors, std::string own_name,
                                                 std::string own_address);

inline constexpr const char* kReachedAt = "TRAINCTL_ADDRESS";

}  // namespace trainctl::clusters
