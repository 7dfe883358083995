// Variants of fork for helper processes of the launcher.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

/// Calls fork. In the child all signals are blocked, so that the launcher's handlers do not run there (they would
/// notify the launcher), and it has a separate process group, which the terminal's Ctrl-C does not reach.
pid_t quiet_fork();

/// Closes all descriptors except one. Only async-signal-safe calls.
void close_all_but(int fd);
/// Closes all descriptors except several.
void close_all_but(std::vector<int> fds);

/// Runs `work` in a child process and returns its result: a hanging disk blocks the child, not the caller. A thread
/// would not suffice, since a process cannot end while one of its threads waits for such a disk. nullopt if there is no
/// result within `seconds`. If no process can be created, the caller does the work. `work` must not throw.
std::optional<std::string> in_child(double seconds, const std::function<std::string()>& work);

}  // namespace trainctl
