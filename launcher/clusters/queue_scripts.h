// The batch scripts of PBS (qsub) and LSF (bsub).
//
// PBS sends no signal before the time limit, so the script has a timer of its own and submits itself again. LSF sends
// the signal that the script asks for, and starts a job again that ends with kExitRequeue (-Q).
#pragma once

#include "launcher/clusters/manifests.h"

namespace trainctl::clusters {

/// job.yaml and job.pbs. Throws SpecError for fields that cannot be in the lines of options.
std::vector<Manifest> pbs_manifests(const JobSpec& job, const ManifestOptions& options, const Template& text_of);
/// job.yaml and job.lsf.
std::vector<Manifest> lsf_manifests(const JobSpec& job, const ManifestOptions& options, const Template& text_of);

/// Seconds of a time limit: "90" and "1:30:00" of PBS, whose plain numbers are seconds. 0: the text is not a time.
int64_t pbs_seconds(const std::string& time);

}  // namespace trainctl::clusters
