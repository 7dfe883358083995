// Makes the files of `trainctl render`, and those that `trainctl run launch.target=slurm` submits.
#pragma once

#include <string>
#include <vector>

#include "cli/run/job_file.h"
#include "launcher/clusters/manifests.h"

namespace trainctl {

/// Plans the job to determine what a host needs. `folder`: folder of the files. Throws SpecError, EnvError.
std::vector<clusters::Manifest> render_job(const JobFile& file, const JobSpec& spec,
                                           const std::string& folder);

/// Creates the folder and writes the files, replacing existing ones. Throws EnvError.
void write_manifests(const std::vector<clusters::Manifest>& files, const std::string& folder);

}  // namespace trainctl
