// Failures on their way to the user: printed to stderr as a compiler prints them, and an exit code.
#pragma once

namespace trainctl {

/// Call it in a catch block: prints the current exception and returns the exit code of its kind (design section 7).
int report_current_exception();

}  // namespace trainctl
