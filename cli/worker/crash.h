// Last words of a rank that the CPU stops: signal and stack on stderr, then the death it would have died.
#pragma once

namespace trainctl {

/// For SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, on a stack of its own.
void report_crashes();

}  // namespace trainctl
