// Settings of `launch`: how many ranks there are, where they run, and what happens when one fails.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

enum class Device : uint8_t { automatic, cpu, cuda };
enum class BindMode : uint8_t { none, core, numa };
/// The target on which `run` starts a job and for which `render` writes files. hosts: this host, or those of
/// launch.hosts.
enum class Target : uint8_t { hosts, slurm, kubernetes, compose, pbs, lsf };
/// The cloud whose metadata service announces that a host will be taken away.
enum class SpotNotices : uint8_t { none, aws, gcp, azure };
std::string_view to_string(Device device);
std::string_view to_string(BindMode mode);
std::string_view to_string(Target target);
std::string_view to_string(SpotNotices notices);

/// launch.elastic: the run continues with fewer ranks when a host is lost.
struct ElasticSpec {
  int min_ranks = 1;  ///< the run ends if fewer ranks are left
  /// A host whose ranks need this many times as long for their work as those of the fastest host, for a minute, gets
  /// less work; 0: never.
  double straggler = 1.5;
};

/// launch.slurm: resources that the batch script asks for. An empty string: Slurm's own default.
struct SlurmSpec {
  std::string partition, account, qos, constraint;
  std::string time;  ///< time limit, in the format of sbatch: "30", "1:00:00", "2-0"
  int nodes = 1;
  int gpus_per_node = 0;           ///< 0: none is asked for
  bool requeue = true;             ///< requeue the job after the time limit or a lost node, if it saves checkpoints
  std::vector<std::string> extra;  ///< lines of #SBATCH, without that word: "--mem=8G"
};

/// launch.pbs and launch.lsf: resources that the batch script asks for. An empty string: the default of the queue.
struct QueueSpec {
  std::string queue, account;
  std::string time;  ///< H:MM:SS for PBS, minutes or H:MM for LSF
  int nodes = 1;
  int gpus_per_node = 0;           ///< 0: none is asked for
  bool requeue = true;             ///< after a signal or a lost node, where the job saves checkpoints
  std::vector<std::string> extra;  ///< options of the script's #PBS or #BSUB lines: "-l place=excl"
};

/// A volume of each pod: {claim: data, path: /data}, or {host_path: …, path: …}.
struct VolumeSpec {
  std::string claim, host_path, path;
};

/// launch.kubernetes: what the pods are made of.
struct KubernetesSpec {
  std::string kind = "job";  ///< job (an Indexed Job with a headless service) | jobset | volcano | trainjob
  std::string queue;         ///< the queue of Kueue or Volcano; empty: none
  std::string image = "trainctl:latest";
  std::string name_space;  ///< `namespace`; empty: that of the user's context
  std::string service_account;
  int pods = 1;  ///< launch.ranks are shared evenly among them
  int gpus_per_pod = 0;
  std::string cpu, memory;  ///< resources per pod, in the format of Kubernetes: "4", "8Gi"; empty: as the plan needs
  std::vector<VolumeSpec> volumes;
  std::map<std::string, std::string> node_selector;
  std::vector<std::map<std::string, std::string>> tolerations;
  int backoff_limit = 3;  ///< pods that may fail before the job does
};

struct LaunchSpec {
  int ranks = 1;
  Device device = Device::automatic;
  std::string machine = "auto";  ///< machine that plans are made for (engine/machine)
  /// Machines of several kinds, one per host, or one per rank without hosts; empty: all are `machine`.
  std::vector<std::string> machines;
  std::string log_dir = "log_output";
  std::string comm = "auto";    ///< auto | shm | gloo
  double timeout_seconds = 60;  ///< for start-up, and for a collective
  double grace_seconds = 10;    ///< between SIGTERM and SIGKILL
  int max_restarts = 0;         ///< how often all ranks are restarted after one failed
  BindMode bind = BindMode::none;
  int64_t log_size = 100'000'000;  ///< bytes of a log file before the next one is started; 0: no limit
  // Beyond this host (docs/hosts.md).
  std::vector<std::string> hosts;  ///< "me@a", "b:4"; empty, and no hostfile: all ranks are on this host
  std::string hostfile;            ///< file in the format of mpirun or DeepSpeed
  std::string ssh = "ssh";         ///< the command that reaches a host, and its options
  std::string interface;  ///< network interface on which ranks on CPUs listen; empty: that of the address that ssh uses
  bool tls = true;        ///< whether messages of ranks to other hosts are encrypted
  double reconnect_seconds = 15;  ///< the longest time for which a host may be unreachable before it counts as lost
  std::vector<std::string> copy;  ///< files and folders that each host gets before the ranks start
  std::optional<ElasticSpec> elastic;
  // Under a cluster's manager (docs/slurm.md, docs/kubernetes.md).
  Target target = Target::hosts;
  SlurmSpec slurm;
  KubernetesSpec kubernetes;
  QueueSpec pbs, lsf;
  SpotNotices spot_notices = SpotNotices::none;
  std::string spot_address;  ///< address of the metadata service; empty: the cloud's
  bool has_hosts() const { return !hosts.empty() || !hostfile.empty(); }
  int log_files = 5;  ///< per stream of a rank, including the current one
};

}  // namespace trainctl
