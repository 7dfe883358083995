// Detects what has started this process: a user, Slurm, PBS, LSF, mpirun or a pod of Kubernetes. Reads the environment,
// and the file of PBS that it names.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace trainctl::clusters {

enum class Manager : uint8_t { none, slurm, mpi, pods, queue };

struct StartedBy {
  Manager manager = Manager::none;
  std::string name;  ///< "Slurm", "PMIx of Slurm", "Open MPI", "MPICH", "Kubernetes", "PBS", "LSF": for messages
  std::string job;   ///< the manager's job ID, common to all starts of the job; empty: not set
  int index = 0, count = 1;        ///< index of this process among those started in the same way, and their number
  int local_index = 0;             ///< index among those on its host
  std::vector<std::string> hosts;  ///< slurm, queue: the nodes; pods: their names; mpi: empty, exchanged later
  int restarts = 0;                ///< how often Slurm has started the job again
};

inline constexpr const char* kMpich = "MPICH";
inline constexpr const char* kPmixOfSlurm = "PMIx of Slurm";

/// Set by the rendered batch scripts of PBS and LSF: the job ID of the first submission, which the later ones continue.
/// Other scripts may run several jobs, so `job` is empty in them.
inline constexpr const char* kQueueJobVariable = "TRAINCTL_QUEUE_JOB";

/// The value of a variable; null if it is not set.
using Environment = std::function<const char*(const char* name)>;

/// Throws EnvError if the environment is inconsistent, with the variable, its value and what was expected.
StartedBy started_by(const Environment& environment);
StartedBy started_by();  ///< reads the environment of this process

}  // namespace trainctl::clusters
