// YAML tree -> JobSpec, section by section, following the field table.
#pragma once

#include "engine/spec/job_spec.h"
#include "engine/spec/job_text.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// Fills in everything from a tree whose expressions it replaces first; file and source are set before. Loads the
/// plugins, as `from` states. Errors go to `problems`.
void read_job(YamlNode& root, const JobText& from, JobSpec& job, Problems& problems);

}  // namespace trainctl
