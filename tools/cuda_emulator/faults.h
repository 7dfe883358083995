// Faults that kernels commit. A kind of fault at a line of a kernel is reported once.
#pragma once

#include <stdexcept>
#include <string>

namespace trainctl::emulator {

/// Ends the launch: the kernel cannot continue.
struct Trap : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Printed at once; the next runtime call that can fail returns it too. `key` names kind and place.
void report_fault(const std::string& key, const std::string& text);

/// The faults since the last call, a line each; may be empty.
std::string take_faults();

/// Faults reported so far may be reported again.
void forget_faults();

/// Returns whether faults fail the runtime's calls, or are only printed (TRAINCTL_EMULATOR_FAULTS=print).
bool faults_fail_calls();

}  // namespace trainctl::emulator
