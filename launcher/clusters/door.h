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
  std::string name;                    ///< name of the host
  std::vector<std::string> addresses;  ///< each is tried; names are resolved at each try
  int port = 0;
};

/// A listening socket. `port` 0: any. Throws EnvError.
int listen_at(int port);
int port_of(int listener);
/// IPv4 addresses of this host, beside loopback.
std::vector<std::string> own_addresses();

/// Serves until the run is over; returns its exit code. SIGTERM, SIGINT and SIGHUP do not end it while a launcher is
/// connected, which has had the same signal and ends the run once the ranks have stopped. Without one it returns
/// 128 + signal after `orphan_seconds`. Variable kReachedAt tells scripts at which address they were reached.
int serve_door(int listener, const std::string& token, double orphan_seconds = 10);

/// Tries until a door answers, for `seconds`, at least once. Returns this host's address on the way there. Throws EnvError.
std::string await_door(const DoorAddress& door, const std::string& token, double seconds);
/// Ends the doors with `code`. Tries each until it has been reached, all of them for `seconds` in total: a door that has
/// ended already does not answer.
void end_doors(std::vector<DoorAddress> doors, const std::string& token, int code, double seconds = 15);

/// `trainctl dial`: stdin and stdout become those of `script` behind the door. Tries as await_door.
int dial(const DoorAddress& door, const std::string& token, const std::string& script);

/// Doors of other hosts by dial, and `own_name` by a shell of this host; `own_address`: of this one for the others. The
/// token goes to dial in kTokenVariable.
std::unique_ptr<hosts::Transport> door_transport(std::vector<DoorAddress> doors, std::string own_name,
                                                 std::string own_address);

inline constexpr const char* kReachedAt = "TRAINCTL_ADDRESS";

}  // namespace trainctl::clusters
