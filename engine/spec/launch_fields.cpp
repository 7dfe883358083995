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
      "How the run continues when a host is lost.",
      {
          field<&ElasticSpec::min_ranks>("min_ranks", "The run ends if fewer ranks remain.").at_least(1),
          field<&ElasticSpec::straggler>(
              "straggler",
              "A host whose ranks persistently take this many times as long as those of the fastest host gets less "
              "work, or is left out if the run is faster without it; default: 1.5; 0: never.")
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
          field<&L::ranks>("ranks", "Number of processes; with parameter_server, number of workers.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&L::device>("device", "Device that runs the kernels; gpu means cuda.").of(JobKind::network),
          list_field<&L::machines>(
              "machine", FieldKind::any_names,
              "The machine to plan for: h100x8, …, a name given to trainctl calibrate, or a machine file; chosen by "
              "the "
              "device if omitted. A list has one per host of launch.hosts, or one per rank: pipeline stages and "
              "data-parallel ranks get work by their speeds. See unequal_machines.md.")
              .of(JobKind::network),
          field<&L::log_dir>("log_dir", "Folder for logs, with one folder per run and in it one folder per rank."),
          field<&L::comm>("comm", "How ranks communicate. shm: shared memory within one host.")
              .one_of({"auto", "shm", "gloo"})
              .of(JobKind::network),
          field<&L::timeout_seconds>("timeout",
                                     "Time limit for start-up, for each collective, and for a rank without progress.")
              .is(FieldKind::seconds)
              .above(0)
              .of(JobKind::network),
          field<&L::grace_seconds>("grace", "Time between the request to stop and killing the processes.")
              .is(FieldKind::seconds)
              .at_least(0),
          field<&L::max_restarts>("max_restarts",
                                  "Maximum number of times that all ranks are restarted after a "
                                  "failure.")
              .at_least(0),
          field<&L::bind>("bind", "Binds each rank to its own cores, or to a NUMA node that it shares."),
          field<&L::log_size>("log_size", "Size at which a rank's log file is rotated; 0: never.")
              .is(FieldKind::bytes)
              .at_least(0),
          list_field<&L::hosts>("hosts", FieldKind::any_names,
                                "Hosts to reach over ssh, as a or me@a; b:4 runs four ranks. See hosts.md."),
          field<&L::hostfile>("hostfile", "A host file in the format of mpirun or DeepSpeed."),
          field<&L::ssh>("ssh", "The ssh command, with options."),
          field<&L::interface>("interface",
                               "Network interface on which CPU ranks listen for ranks of other hosts, "
                               "such as eth0."),
          field<&L::tls>("tls",
                         "Encrypts the traffic between CPU ranks of different hosts, with mutual authentication.")
              .of(JobKind::network),
          field<&L::reconnect_seconds>("reconnect", "How long a host may be unreachable before its ranks are killed.")
              .is(FieldKind::seconds)
              .at_least(1),
          list_field<&L::copy>("copy", FieldKind::paths,
                               "Files and folders to copy to each of launch.hosts before the ranks start, unless a "
                               "host already has the same contents; relative to the job file. See hosts.md."),
          elastic_field(),
          field<&L::target>("target",
                            "Where `run` starts the job, and the target of `render`; hosts: this host, or "
                            "launch.hosts."),
          subsection<&L::slurm>("slurm", slurm_section(), "Slurm options of the batch script. See slurm.md."),
          subsection<&L::pbs>("pbs", pbs_section(), "PBS options of the batch script. See queues.md."),
          subsection<&L::lsf>("lsf", lsf_section(), "LSF options of the batch script. See queues.md."),
          field<&L::spot_notices>("spot_notices",
                                  "The cloud whose metadata service the launcher polls every few seconds for a notice "
                                  "that this host will be reclaimed. After a notice the job finishes its step, saves a "
                                  "checkpoint if train.checkpoint is set, and exits with code 75.")
              .of(JobKind::network),
          field<&L::spot_address>("spot_address",
                                  "Address of the metadata service, HOST:PORT; 169.254.169.254:80 if omitted.")
              .of(JobKind::network),
          subsection<&L::kubernetes>("kubernetes", kubernetes_section(),
                                     "Settings of the pods or containers. See kubernetes.md."),
          field<&L::log_files>("log_files", "Log files to keep per stream of a rank; the oldest is deleted.")
              .at_least(1),
      }};
  return section;
}

}  // namespace trainctl
