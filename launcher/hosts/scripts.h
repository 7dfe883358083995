// Scripts that run on a host before this program does: POSIX shell without single quotes, for a Transport.
#pragma once

#include <string>

#include "launcher/hosts/bundle.h"

namespace trainctl::hosts {

/// Written by a script instead of what it is for.
inline constexpr const char* kNotInstalled = "trainctl-not-installed";
inline constexpr const char* kWrongMachine = "trainctl-wrong-machine";

/// Becomes the relay of agent `id`; writes kNotInstalled or kWrongMachine if it cannot. `may_start`: as relay_to_agent.
std::string agent_script(const Bundle& bundle, const std::string& id, bool may_start);
/// Becomes a probe (probe.h); writes the same if it cannot.
std::string probe_script(const Bundle& bundle, const std::string& interface);
/// Prints kReachedLine if an agent's listener (link_check.h) is reached from there.
std::string reach_script(const Bundle& bundle, const std::string& address_and_port);
/// Installs a bundle that comes as a tar archive; all or nothing.
std::string install_script(const Bundle& bundle);

}  // namespace trainctl::hosts
