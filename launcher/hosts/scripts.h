// Scripts that run on a host before this program: POSIX shell without single quotes, for a Transport.
#pragma once

#include <string>

#include "launcher/hosts/bundle.h"

namespace trainctl::hosts {

/// Lines that a script prints if it cannot do its work.
inline constexpr const char* kNotInstalled = "trainctl-not-installed";
inline constexpr const char* kWrongMachine = "trainctl-wrong-machine";

/// Executes the relay of agent `id` (relay_to_agent, which also explains `may_start`); prints kNotInstalled or
/// kWrongMachine if it cannot.
std::string agent_script(const Bundle& bundle, const std::string& id, bool may_start);
/// Executes a probe (probe.h); prints the same lines if it cannot.
std::string probe_script(const Bundle& bundle, const std::string& interface);
/// Prints kReachedLine if an agent's listener (link_check.h) can be reached from the host.
std::string reach_script(const Bundle& bundle, const std::string& address_and_port);
/// Installs a bundle from a tar archive, atomically.
std::string install_script(const Bundle& bundle);

}  // namespace trainctl::hosts
