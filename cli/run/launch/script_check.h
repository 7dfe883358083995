// Finds the script in a command like [python3, -u, train.py, --lr, 0.1] and checks that it exists.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl {

/// Returns the index of the word that a known interpreter would run as its script. That is the first word that is
/// neither an option nor the value of an option, if it has a file suffix of that language. Returns nothing if there is
/// any doubt.
std::optional<size_t> script_word(const std::vector<std::string>& command);

/// Throws a SpecError, at that word, if there is no such file in working_dir or it cannot be read.
void require_script(const JobSpec& spec);

}  // namespace trainctl
