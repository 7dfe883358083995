// Reaching a host by the user's own ssh: its configuration, keys, agents, jump hosts and ports are as on the command
// line, and so are its checks of host keys. It never asks: what it would ask is an error (BatchMode).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/hosts/bundle.h"

namespace trainctl::hosts {

/// Written by a script instead of what it is for.
inline constexpr const char* kNotInstalled = "trainctl-not-installed";
inline constexpr const char* kWrongMachine = "trainctl-wrong-machine";

/// The words that run a POSIX shell script on a host. `ssh`: launch.ssh; it is cut at blanks. `script` has no single
/// quote.
std::vector<std::string> ssh_words(const std::string& ssh, const std::string& host, const std::string& script);

/// Becomes the relay of agent `id`; writes kNotInstalled or kWrongMachine if it cannot. `may_start`: as relay_to_agent.
std::string agent_script(const Bundle& bundle, const std::string& id, bool may_start);
/// Becomes a probe (probe.h); writes the same if it cannot.
std::string probe_script(const Bundle& bundle, const std::string& interface);
/// Installs a bundle that comes as a tar archive; all or nothing.
std::string install_script(const Bundle& bundle);

/// A child process with pipes. It is killed when the launcher ends.
struct PipedChild {
  int pid = -1;
  int feeder = -1;                  ///< another process; -1: none
  int in = -1, out = -1, err = -1;  ///< our ends; the owner closes them
};
/// `feed`: if set, a process that writes the child's input, and `in` is -1. Throws EnvError.
PipedChild start_piped(const std::vector<std::string>& words, const std::function<void(int fd)>& feed = {});

}  // namespace trainctl::hosts
