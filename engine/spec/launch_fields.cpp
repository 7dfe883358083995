// The fields of launch. Defaults are the initializers of job_spec.h and launch_spec.h.
#include "engine/spec/cluster_fields.h"
#include "engine/spec/field_makers.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/section_fields.h"

namespace trainctl {
namespace {

const Section& elastic_section() {
  static const Section section{
      "launch.elastic",
      "Continuation of the run after the loss of a host.",
      {
          field<&ElasticSpec::min_ranks>("min_ranks", "Minimum number of ranks; the run ends if fewer remain.")
              .at_least(1),
          field<&ElasticSpec::straggler>(
              "straggler",
              "Slowdown factor, relative to the fastest host, at which a host counts as a straggler. A persistent "
              "straggler gets less work, or is excluded if the run is faster without it. Default: 1.5; 0: disabled.")
              .at_least(0),
      }};
  return section;
}

Field elastic_field() {
  Field f = make_field("elastic", FieldKind::section,
                       "If a host is lost, the run continues on the remaining hosts, from the newest checkpoint and "
                       "with a new plan; a host that returns is used again. See hosts.md.")
                .of(JobKind::network);
  f.section = &elastic_section();
  f.stands_for = "min_ranks";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& elastic = static_cast<LaunchSpec*>(enclosing)->elastic;
    if (make && !elastic) elastic.emplace();
    return elastic ? &*elastic : nullptr;
  };
  return f;
}

}  // namespace

const Section& launch_section() {
  using L = LaunchSpec;
  static const Section section{
      "launch",
      "Where the ranks run.",
      {
          field<&L::ranks>("ranks", "Number of processes; with parameter_server, the number of workers.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&L::device>("device", "Device that runs the kernels; gpu means cuda.").of(JobKind::network),
          list_field<&L::machines>("machine", FieldKind::any_names,
                                   "Machine to plan for: h100x8, …, a name given to trainctl calibrate, or a machine "
                                   "file; if omitted, chosen according to the device. A list contains one machine per "
                                   "host of launch.hosts, or one per rank; pipeline stages and data-parallel ranks are "
                                   "assigned work according to their speeds. See unequal_machines.md.")
              .of(JobKind::network),
          field<&L::log_dir>("log_dir",
                             "Folder for logs. It contains one folder per run, which contains one folder per rank."),
          field<&L::comm>("comm", "Communication backend of the ranks. shm: shared memory within one host.")
              .one_of({"auto", "shm", "gloo"})
              .of(JobKind::network),
          field<&L::timeout_seconds>(
              "timeout", "Time limit for start-up, for each collective, and for a rank that makes no progress.")
              .is(FieldKind::seconds)
              .above(0)
              .of(JobKind::network),
          field<&L::grace_seconds>("grace", "Time between asking the processes to stop and killing them.")
              .is(FieldKind::seconds)
              .at_least(0),
          field<&L::max_restarts>("max_restarts",
                                  "Maximum number of times that all ranks are restarted after a failure.")
              .at_least(0),
          field<&L::bind>("bind",
                          "CPU binding of the ranks. core: each rank is bound to its own cores. numa: each rank is "
                          "bound to a NUMA node, which it may share."),
          field<&L::log_size>("log_size", "Size at which a rank's log file is rotated; 0: never.")
              .is(FieldKind::bytes)
              .at_least(0),
          list_field<&L::hosts>(
              "hosts", FieldKind::any_names,
              "Hosts to connect to over ssh, written as a or me@a; b:4 runs four ranks on b. See hosts.md."),
          field<&L::hostfile>("hostfile", "Host file in the format of mpirun or DeepSpeed."),
          field<&L::ssh>("ssh", "The ssh command, with options."),
          field<&L::interface>(
              "interface",
              "Network interface, such as eth0, on which CPU ranks listen for connections from ranks on other hosts."),
          field<&L::tls>("tls",
                         "Encrypts the traffic between CPU ranks of different hosts, with mutual authentication.")
              .of(JobKind::network),
          field<&L::reconnect_seconds>("reconnect",
                                       "Maximum time that a host may be unreachable before its ranks are killed.")
              .is(FieldKind::seconds)
              .at_least(1),
          list_field<&L::copy>("copy", FieldKind::paths,
                               "Files and folders to copy to each of launch.hosts before the ranks start, unless a "
                               "host already has the same contents; relative to the job file. See hosts.md."),
          elastic_field(),
          field<&L::target>("target",
                            "Target on which `run` starts the job and for which `render` writes files. hosts: this "
                            "host, or launch.hosts."),
          subsection<&L::slurm>("slurm", slurm_section(), "Slurm options of the batch script. See slurm.md."),
          subsection<&L::pbs>("pbs", pbs_section(), "PBS options of the batch script. See queues.md."),
          subsection<&L::lsf>("lsf", lsf_section(), "LSF options of the batch script. See queues.md."),
          field<&L::spot_notices>("spot_notices",
                                  "Cloud provider whose metadata service the launcher polls every few seconds for a "
                                  "notice that this host will be reclaimed. After a notice, the job finishes its step, "
                                  "saves a checkpoint if train.checkpoint is set, and exits with code 75.")
              .of(JobKind::network),
          field<&L::spot_address>("spot_address",
                                  "Address of the metadata service, as HOST:PORT; if omitted, 169.254.169.254:80.")
              .of(JobKind::network),
          subsection<&L::kubernetes>("kubernetes", kubernetes_section(),
                                     "Pod or container settings. See kubernetes.md."),
          field<&L::log_files>("log_files",
                               "Number of log files to keep per stream of a rank; the oldest file is deleted.")
              .at_least(1),
      }};
  return section;
}

}  // namespace trainctl
