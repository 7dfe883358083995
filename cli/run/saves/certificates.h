// Names the files where `trainctl verify` writes certificates, and where a run stores that of its job.
//
//   log_output/certificates/<digest>.json, .html   of each job that was verified
//   log_output/3/checkpoints/certificate.json, .html   of the run's job, if it was verified by this version
#pragma once

#include <optional>
#include <string>

#include "engine/train/verification/certificate.h"

namespace trainctl {

/// The folder of the certificates that belong to a job's log directory.
std::string certificate_folder(const JobSpec& spec);

/// Writes both files to `folder`, which is created. Returns the path of the JSON file. Throws EnvError.
std::string write_certificate(const Certificate& certificate, const std::string& page, const std::string& folder);

/// Copies the certificate of the planned job, if this version of trainctl has written one, to a folder of checkpoints.
/// Returns a line for the user if that failed, else "".
std::string store_certificate(const JobSpec& planned, const std::string& checkpoints);

/// The certificate in the folder that contains a checkpoint; nullopt if there is none. Throws EnvError if it cannot be
/// read.
std::optional<Certificate> certificate_beside(const std::string& checkpoint);

}  // namespace trainctl
