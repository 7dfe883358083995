// Reports a crash of a rank: writes signal and stack to stderr, then lets the signal kill the process.
#pragma once

namespace trainctl {

/// Handles SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, on a separate stack.
void report_crashes();

}  // namespace trainctl
