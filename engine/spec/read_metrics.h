// Reads metrics: `accuracy`, `top5` or `{type: top_k, k: 5}`.
#pragma once

#include <string>

#include "engine/spec/job_spec.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// One metric, or a list of metrics, into job.metrics.
void read_metrics(const YamlNode& node, const std::string& path, JobSpec& job, Problems& problems);
/// Adds to the job's metrics those that only the validation names.
void add_metrics_of_validation(JobSpec& job, Problems& problems);

}  // namespace trainctl
