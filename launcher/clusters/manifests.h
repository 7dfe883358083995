// The files that start a job under a cluster manager: Slurm batch script, Kubernetes manifests, docker compose file.
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
  std::string trainctl;  ///< the binary, as called by the batch script
  std::string folder;    ///< where the files will be, absolute
  std::string job_text;  ///< the job as YAML, with all of its fields
  std::string token;     ///< token in the job's Secret
  std::string version;
};

/// Every manifest begins with this text.
inline constexpr const char* kWrittenBy = "# Written by trainctl ";

struct Manifest {
  std::string name;  ///< file name
  std::string text;
  bool is_secret = false;  ///< only its owner may read it
};

/// The text of templates/clusters/<name>.in.
using Template = std::function<std::string_view(std::string_view name)>;

/// Writes the files for launch.target, which is not hosts. Throws SpecError if the job cannot run there.
std::vector<Manifest> manifests(const JobSpec& job, const ManifestOptions& options, const Template& text_of);

/// Time between a manager's warning and its kill.
int stop_seconds(const JobSpec& job, const HostNeeds& needs);

/// The job's name as allowed by Kubernetes: at most 40 of a to z, 0 to 9 and '-', starting with a letter.
std::string name_of_pods(const std::string& job);

}  // namespace trainctl::clusters
