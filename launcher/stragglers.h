// Processes that left the process group of their rank (setsid: daemons, nested launchers). Every process that a rank
// starts inherits a mark in its environment, by which it is found.
#pragma once

#include <string>
#include <utility>

namespace trainctl {

/// A name unique to this run.
std::string random_mark();

/// The variable that carries the mark in a rank's environment. A run nested in another run's rank has both marks.
std::pair<std::string, std::string> mark_variable(const std::string& mark);

/// Sends SIGKILL to every process with the mark in its environment until none is left. Only async-signal-safe calls.
void kill_stragglers(const char* mark);

}  // namespace trainctl
