// The remote-execution listener of a process that a cluster manager has started: for each connection that has the job's
// token it runs a script, as sshd would.
//
//   launcher ── dial ── TLS ── listener ── sh -c SCRIPT ── relay ── agent (pod 1) ── ranks
//
//   request := "run " size "\n" script        then stdin and stdout of the script, raw
//            | "ping\n"                        the answer is "listener\n"
//            | "end " code "\n"                the run is over: the listener exits with `code`
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/transport.h"

namespace trainctl::clusters {

struct ListenerAddress {
  std::string name;                    ///< name of the host
  std::vector<std::string> addresses;  ///< tried in order; names are resolved at each try
  int port = 0;
};

/// The address as JSON, which processes of mpirun exchange.
std::string to_json(const ListenerAddress& address);
/// nullopt if the text is not the address of a listener.
std::optional<ListenerAddress> parse_listener(const std::string& json);

/// Opens a listening socket. `port` 0: any free port. Throws EnvError.
int listen_at(int port);
int port_of(int listener);
/// IPv4 addresses of this host, except loopback.
std::vector<std::string> own_addresses();

/// Serves until the run is over; returns its exit code. SIGTERM, SIGINT and SIGHUP do not end it while a launcher is
/// connected, which has received the same signal and ends the run once the ranks have stopped. Without a launcher it
/// returns 128 + signal after `orphan_seconds`. Variable kReachedAt contains the address at which scripts were reached.
int serve_remote_execution(int listener, const std::string& token, double orphan_seconds = 10);

/// Tries for `seconds`, at least once, to reach a listener. Returns this host's address on that route. Throws EnvError.
std::string await_listener(const ListenerAddress& listener, const std::string& token, double seconds);
/// Ends the listeners with `code`. Tries each until it has been reached, all of them for `seconds` in total: a listener
/// that has already ended does not respond.
void end_listeners(std::vector<ListenerAddress> listeners, const std::string& token, int code, double seconds = 15);

/// `trainctl dial`: connects stdin and stdout with `script` at the listener. Tries as await_listener.
int dial(const ListenerAddress& listener, const std::string& token, const std::string& script);

/// Reaches other hosts with dial, and `own_name` with a shell on this host; `own_address`: address of this host for the
/// others. The token is passed to dial in kTokenVariable.
std::unique_ptr<hosts::Transport> listener_transport(std::vector<ListenerAddress> listeners, std::string own_name,
                                                     std::string own_address);

inline constexpr const char* kReachedAt = "TRAINCTL_ADDRESS";

}  // namespace trainctl::clusters
