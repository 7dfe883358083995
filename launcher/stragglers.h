// Processes that left the process group of their rank (setsid: daemons, nested launchers). Every process that a rank
// starts inherits a mark in its environment, which identifies it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trainctl {

/// A name unique to this run.
std::string random_mark();

/// The variable that carries the mark in a rank's environment. A run nested in another run's rank has both marks.
std::pair<std::string, std::string> mark_variable(const std::string& mark);

/// A process that outlives the one that started it.
struct Leftover {
  int pid = 0;
  std::string name;  ///< /proc/<pid>/comm
};
/// Identifies the descendants of a process.
struct Family {
  int group = 0;     ///< its process group, whose number is its own pid
  std::string mark;  ///< in the environment of its descendants; empty: only its group is known
};
/// The running processes of each family, without its leader.
std::vector<std::vector<Leftover>> find_leftovers(const std::vector<Family>& families);

/// "sh (pid 17), sleep (pid 18)".
std::string describe(const std::vector<Leftover>& leftovers);

/// The children of this process that have ended and have not been waited for yet; none if the kernel lists no children.
std::vector<int> ended_children();

/// Returns whether a process exists and is not a zombie.
bool is_running(int pid);

/// Sends SIGKILL to every process with the mark in its environment until none is left. Only async-signal-safe calls.
void kill_leftovers(const char* mark);

}  // namespace trainctl
