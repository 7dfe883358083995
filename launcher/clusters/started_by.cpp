// Detects what has started this process: a user, Slurm, PBS, LSF, mpirun or a pod of Kubernetes.
#include "launcher/clusters/started_by.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "engine/base/error.h"
#include "launcher/clusters/node_list.h"
#include "launcher/clusters/pods.h"

namespace trainctl::clusters {
namespace {

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  std::string text(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (const char* value = environment_(name); value != nullptr && *value != '\0') return value;
    return "";
  }
  bool has(const char* name) const { return !text({name}).empty(); }

  /// Value of the first variable that is set; `otherwise` if none is.
  int number(std::initializer_list<const char*> names, int otherwise) const {
    for (const char* name : names) {
      const std::string value = text({name});
      if (value.empty()) continue;
      int number = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (error != std::errc() || end != value.data() + value.size() || number < 0)
        throw EnvError(std::string(name) + " is '" + value + "', which is not a number");
      return number;
    }
    return otherwise;
  }

 private:
  const Environment& environment_;
};

/// `srun trainctl run` starts one process per task; a batch script and salloc's shell start a single one.
StartedBy by_slurm(const Variables& variables) {
  StartedBy by{.manager = Manager::slurm, .name = "Slurm"};
  by.job = variables.text({"SLURM_JOB_ID", "SLURM_JOBID"});
  const std::string nodes = variables.text({"SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const auto hosts = expand_nodes(nodes);
  if (!hosts) throw EnvError("SLURM_JOB_NODELIST is '" + nodes + "', which is not a list of nodes");
  by.hosts = *hosts;
  by.restarts = variables.number({"SLURM_RESTART_COUNT"}, 0);
  const std::string step = variables.text({"SLURM_STEP_ID", "SLURM_STEPID"});
  const bool is_step = !step.empty() && step.find_first_not_of("0123456789") == std::string::npos;
  if (!is_step) return by;
  by.index = variables.number({"SLURM_PROCID"}, 0);
  by.count = variables.number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}, 1);
  by.local_index = variables.number({"SLURM_LOCALID"}, 0);
  // srun --mpi=pmix: its tasks can exchange their addresses without an srun in the container.
  if (variables.has("PMIX_NAMESPACE") && by.count > 1) {
    by.manager = Manager::mpi;
    by.name = kPmixOfSlurm;
  }
  return by;
}

StartedBy by_mpi(const Variables& variables, const char* name, const char* rank, const char* size,
                 const char* local_rank) {
  StartedBy by{.manager = Manager::mpi, .name = name};
  by.index = variables.number({rank}, 0);
  by.count = variables.number({size}, 1);
  by.local_index = variables.number({local_rank}, 0);
  return by;
}

StartedBy by_open_mpi(const Variables& variables) {
  return by_mpi(variables, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK");
}

/// Hydra, the mpiexec of MPICH and Intel MPI.
StartedBy by_hydra(const Variables& variables) {
  return by_mpi(variables, kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID");
}

/// Appends the words that it does not contain: a host has a line or a word per slot.
void add_hosts(std::istream& words, std::vector<std::string>& hosts) {
  for (std::string host; words >> host;)
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
}

StartedBy by_pbs(const Variables& variables) {
  StartedBy by{.manager = Manager::queue, .name = "PBS"};
  by.job = variables.text({kQueueJobVariable});
  const std::string path = variables.text({"PBS_NODEFILE"});
  std::ifstream file(path);
  add_hosts(file, by.hosts);
  if (by.hosts.empty()) throw EnvError("PBS_NODEFILE is '" + path + "', which lists no hosts");
  return by;
}

StartedBy by_lsf(const Variables& variables) {
  StartedBy by{.manager = Manager::queue, .name = "LSF"};
  by.job = variables.text({kQueueJobVariable});
  std::istringstream words(variables.text({"LSB_HOSTS"}));
  add_hosts(words, by.hosts);
  if (!by.hosts.empty()) return by;
  const std::string path = variables.text({"LSB_DJOB_HOSTFILE"});  // LSB_HOSTS is not set for many slots
  std::ifstream file(path);
  add_hosts(file, by.hosts);
  if (by.hosts.empty()) throw EnvError("neither LSB_HOSTS nor the file LSB_DJOB_HOSTFILE '" + path + "' lists hosts");
  return by;
}

/// Reads the variables of the rendered manifests. A restarted pod has the same ones.
StartedBy by_pods(const Variables& variables) {
  StartedBy by{.manager = Manager::pods, .name = "Kubernetes"};
  by.index = variables.number({"TRAINCTL_POD", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX"}, 0);
  const std::string names = variables.text({kPodsVariable});
  const auto hosts = expand_nodes(names);
  if (!hosts) throw EnvError(std::string(kPodsVariable) + " is '" + names + "', which is not a list of pods");
  by.hosts = *hosts;
  by.count = static_cast<int>(hosts->size());
  by.job = variables.text({kPodsJobVariable});
  return by;
}

}  // namespace

StartedBy started_by(const Environment& environment) {
  const Variables variables(environment);
  StartedBy by;
  // Open MPI under Slurm sets the variables of both; the innermost one counts.
  if (variables.has(kPodsVariable)) {
    by = by_pods(variables);
  } else if (variables.has("OMPI_COMM_WORLD_RANK")) {
    by = by_open_mpi(variables);
  } else if (variables.has("PMI_RANK") && variables.has("PMI_FD") && variables.has("MPI_LOCALRANKID")) {
    // Slurm's --mpi=pmi2 also sets PMI_FD, but with another protocol and without a number within the host.
    by = by_hydra(variables);
  } else if (!variables.text({"SLURM_JOB_ID", "SLURM_JOBID"}).empty() &&
             !variables.text({"SLURM_JOB_NODELIST", "SLURM_NODELIST"}).empty()) {
    by = by_slurm(variables);
  } else if (variables.has("PBS_JOBID") && variables.has("PBS_NODEFILE")) {
    by = by_pbs(variables);
  } else if (variables.has("LSB_JOBID") && (variables.has("LSB_HOSTS") || variables.has("LSB_DJOB_HOSTFILE"))) {
    by = by_lsf(variables);
  }
  if (by.index >= by.count)
    throw EnvError("process " + std::to_string(by.index) + " of " + std::to_string(by.count) + ": " + by.name +
                   " has set inconsistent environment variables");
  return by;
}

StartedBy started_by() {
  return started_by([](const char* name) { return std::getenv(name); });
}

}  // namespace trainctl::clusters
