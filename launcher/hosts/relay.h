// The process that ssh starts on a host: copies bytes between ssh and the host's agent.
#pragma once

#include <functional>
#include <string>

namespace trainctl::hosts {

/// The line that the relay writes to its output before the agent's first byte, after any output of a login
/// shell.
inline constexpr const char* kAgentLine = "trainctl-agent";
/// The line that it writes instead if there is no such agent and the launcher did not request a new one.
inline constexpr const char* kGoneLine = "trainctl-agent-gone";

/// Copies between stdin and stdout and the agent `id` until either side closes. If there is none and `may_start`, it
/// first starts one in a separate process, whose exit code is the result of serve(folder, listener). If there is none
/// and not `may_start`, its leftover files are deleted. `id`: hexadecimal digits. Throws EnvError.
int relay_to_agent(const std::string& id, bool may_start,
                   const std::function<int(const std::string& folder, int listener)>& serve);

}  // namespace trainctl::hosts
