// The files that start a job under a manager: Slurm's batch script, manifests of Kubernetes, a file for docker compose.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl::clusters {

/// Resources that the job needs on each host, according to its plan.
struct HostNeeds {
  int64_t memory_bytes = 0;  ///< memory of all ranks of a host; 0: unknown
  int64_t shm_bytes = 0;     ///< size of /dev/shm
  double save_seconds = 0;   ///< time to save a checkpoint
};

struct ManifestOptions {
  HostNeeds needs;
  std::string trainctl;  ///< the binary, as the batch script calls it
  std::string folder;    ///< where the files will be, absolute
  std::string job_text;  ///< the job as YAML, with all of its fields
  std::string token;     ///< token in the job's Secret
  std::string version;
};

/// Each manifest begins with it.
inline constexpr const char* kWrittenBy = "# Written by trainctl ";

struct Manifest {
  std::string name;  ///< file name
  std::string text;
  bool is_secret = false;  ///< only its owner may read it
};

/// The text of templates/clusters/<name>.in.
using Template = std::function<std::string_view(std::string_view name)>;

/// For launch.target, which is not hosts. Throws SpecError where the job cannot be run so.
std::vector<Manifest> manifests(const JobSpec& job, const ManifestOptions& options, const Template& text_of);

/// The time between the warning of a manager and its kill.
int stop_seconds(const JobSpec& job, const HostNeeds& needs);

/// The job's name as Kubernetes allows it: at most 40 of a to z, 0 to 9 and '-', beginning with a letter.
std::string name_of_pods(const std::string& job);

}  // namespace trainctl::clusters
