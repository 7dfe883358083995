// The process that ssh starts on a host: copies bytes between ssh and the host's agent.
#pragma once

#include <functional>
#include <string>

namespace trainctl::hosts {

/// The line that the relay writes to its output before the agent's first byte, after whatever a login shell has
/// printed.
inline constexpr const char* kAgentLine = "trainctl-agent";
/// Instead of it: there is no such agent, and the launcher did not ask for a new one.
inline constexpr const char* kGoneLine = "trainctl-agent-gone";

/// Copies between stdin and stdout and the agent `id`, until either side closes. If there is none and `may_start`, it
/// becomes one first, in a process of its own: serve(folder, listener) returns its exit code. If there is none
/// otherwise, what it left is deleted. `id`: hexadecimal digits. Throws EnvError.
int relay_to_agent(const std::string& id, bool may_start,
                   const std::function<int(const std::string& folder, int listener)>& serve);

}  // namespace trainctl::hosts
