// Text that the files of all cluster managers contain.
#pragma once

#include <string>
#include <vector>

#include "launcher/clusters/manifests.h"

namespace trainctl::clusters {

/// "trainctl 1.0: trainctl render job.yaml launch.target=slurm".
std::string made_by(const JobSpec& job, const ManifestOptions& options);
int ranks_per_host(const JobSpec& job, int hosts);
std::string in_lines(const std::vector<std::string>& lines);
/// Values of env may be secrets.
bool has_secrets(const JobSpec& job);

}  // namespace trainctl::clusters
