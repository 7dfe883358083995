// Faults that kernels commit. A kind of fault at a line of a kernel is reported once.
#pragma once

#include <stdexcept>
#include <string>

namespace trainctl::emulator {

/// Thrown to end the launch when the kernel cannot continue.
struct Trap : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reports a fault: prints it at once, and makes the next runtime call that can fail return it. `key` names the kind
/// and the place of the fault.
void report_fault(const std::string& key, const std::string& text);

/// Returns the faults since the last call, one per line; may be empty.
std::string take_faults();

/// Allows the faults that have been reported so far to be reported again.
void forget_faults();

/// Returns whether faults fail the runtime's calls, or are only printed (TRAINCTL_EMULATOR_FAULTS=print).
bool faults_fail_calls();

}  // namespace trainctl::emulator
