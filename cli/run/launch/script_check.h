// Finds the script in a command like [python3, -u, train.py, --lr, 0.1] and looks whether it exists.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl {

/// The word that a known interpreter takes as its script: the first one that is no option nor an option's value, and
/// that ends like a script of that language. Nothing if there is any doubt.
std::optional<size_t> script_word(const std::vector<std::string>& command);

/// Throws a SpecError, at that word, if there is no such file in working_dir or it cannot be read.
void require_script(const JobSpec& spec);

}  // namespace trainctl
