// Processes that left the group of the rank that started them (setsid: daemons, nested launchers). All that a rank
// starts inherits a mark in its environment, and is found by it.
#pragma once

#include <string>
#include <utility>

namespace trainctl {

/// A name that no other run has.
std::string random_mark();

/// What a rank's environment needs to carry it. A run inside a rank of another keeps that one's mark beside its own.
std::pair<std::string, std::string> mark_variable(const std::string& mark);

/// SIGKILLs every process whose environment has the mark, until there is none. Only async-signal-safe calls.
void kill_stragglers(const char* mark);

}  // namespace trainctl
