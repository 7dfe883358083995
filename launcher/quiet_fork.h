// fork for processes that the launcher starts for itself.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

/// fork. In the child all signals are blocked, so that none is handled by the launcher's handlers (which would tell the
/// launcher of it), and it is in a process group of its own, out of reach of the terminal's Ctrl-C.
pid_t quiet_fork();

/// Closes all descriptors except one. Only async-signal-safe calls.
void close_all_but(int fd);
/// Except several.
void close_all_but(std::vector<int> fds);

/// The result of `work`, executed in a child process: a disk that hangs holds the child, and not the caller. A thread
/// would not do: a process cannot end while one of its threads waits for such a disk. nullopt if there is no result
/// within `seconds`. Where the machine allows no other process, the caller does the work. `work` must not throw.
std::optional<std::string> in_child(double seconds, const std::function<std::string()>& work);

}  // namespace trainctl
