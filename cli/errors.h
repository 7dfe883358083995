// Reports failures to the user: compiler-style messages on stderr, and an exit code.
#pragma once

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Call it in a catch block: prints the current exception and returns the exit code of its kind (design section 7).
int report_current_exception();

/// Prints warnings about a job's probable mistakes to stderr, in the same style.
void print_warnings(const JobSpec& spec);
void print_warnings(std::vector<Diagnostic> found);

}  // namespace trainctl
