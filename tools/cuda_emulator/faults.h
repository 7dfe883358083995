// What kernels are found to do wrong. A fault of a kind at a line of a kernel is told once.
#pragma once

#include <stdexcept>
#include <string>

namespace trainctl::emulator {

/// Ends the launch: the kernel cannot go on.
struct Trap : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Printed at once; the next call of the runtime that can fail says it too. `key` names kind and place.
void report_fault(const std::string& key, const std::string& text);

/// Those since the last call, a line each; empty: none.
std::string take_faults();

/// Tells all of them again.
void forget_faults();

/// Whether faults fail the runtime's calls, or are only printed (TRAINCTL_EMULATOR_FAULTS=print).
bool faults_fail_calls();

}  // namespace trainctl::emulator
