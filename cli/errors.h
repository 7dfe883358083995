// Failures on their way to the user: printed to stderr as a compiler prints them, and an exit code.
#pragma once

#include <string>

#include "engine/spec/job_spec.h"

namespace trainctl {

/// Call it in a catch block: prints the current exception and returns the exit code of its kind (design section 7).
int report_current_exception();

/// Prints what the job probably does not mean, in the same way, to stderr.
void print_warnings(const JobSpec& spec);

}  // namespace trainctl
