// Errors of system calls in words. A limit of the machine is named, with its value and how to raise it.
#pragma once

#include <optional>
#include <string>

namespace trainctl {

/// strerror(error). For a limit of this machine also which one: "Too many open files: this process may have 64 open
/// (ulimit -n)".
std::string describe_errno(int error);

/// The message if the exception that is being handled means that the machine refused something: a thread, a process, a
/// file, memory. nullopt: it does not. Call it in a catch block.
std::optional<std::string> machine_refusal();

}  // namespace trainctl
