// Rules between fields: one function per rule.
#include "engine/spec/validate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>

#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/spec/adapters.h"
#include "engine/spec/batch_transforms.h"
#include "engine/spec/expression.h"
#include "engine/spec/fields.h"
#include "engine/spec/hosts.h"
#include "engine/spec/read_value.h"
#include "engine/spec/replicas.h"

namespace trainctl {
namespace {

struct Rules {
  const JobSpec& job;
  Problems& problems;
  std::string source = {};  ///< `job` has this source of the mixture as its data set: "dataset.sources.code"

  void wrong(const std::string& path, const std::string& message, const std::string& hint = {}) {
    problems.add(job.position(in_job(path)), in_job(path), message, hint);
  }

  bool fine(std::initializer_list<const char*> paths) const {
    for (const char* path : paths)
      if (problems.touch(in_job(path))) return false;
    return true;
  }

  std::string in_job(const std::string& path) const {
    const bool is_of_set = path == "dataset" || path.starts_with("dataset.");
    return !source.empty() && is_of_set ? source + path.substr(std::string("dataset").size()) : path;
  }

  /// Those of a replica, with parallel.local_steps.
  int ranks() const { return job.launch.ranks / std::max(1, num_replicas(job)); }
  int ranks_per_stage() const { return ranks() / job.parallel.stages; }
};

std::string number(int64_t value) { return std::to_string(value); }

/// Whether `path` is one folder whose file names the type or `fields` determine.
bool is_one_folder(const DatasetSpec& set) { return set.has_file_splits() || set.type == "npy"; }

/// Returns the twelve smallest divisors as a list.
std::string divisors(int64_t value) {
  std::set<int64_t> found;
  for (int64_t d = 1; d * d <= value; ++d)
    if (value % d == 0) found.insert({d, value / d});
  std::vector<std::string> all;
  for (auto d = found.begin(); d != found.end() && all.size() < 12; ++d) all.push_back(number(*d));
  return join(all);
}

void stand_alone_is_one_rank(Rules& r) {
  if (!r.fine({"parallel.mode", "launch.ranks", "parallel.stages"})) return;
  if (r.job.parallel.mode != ParallelMode::stand_alone) return;
  if (r.job.parallel.stages > 1)
    r.wrong("parallel.stages", "stand_alone has one stage, not " + number(r.job.parallel.stages),
            "set parallel.mode: data_parallel or semi_auto_parallel");
  else if (r.ranks() > 1)
    r.wrong("launch.ranks", "stand_alone runs on one rank, not " + number(r.ranks()),
            "set parallel.mode: data_parallel or semi_auto_parallel");
}

void adapters_start_beside_a_base(Rules& r) {
  const std::optional<LoraSpec>& lora = r.job.adapters.lora;
  if (!lora || lora->from.empty() || r.job.weights) return;
  r.wrong("adapters.lora.from", "the job has no weights, whose name map says which layer each adapter belongs to",
          "set weights.from to the model folder that the adapters were trained with");
}

void frozen_weights_are_packed_beside_adapters(Rules& r) {
  const JobSpec& job = r.job;
  if (!r.fine({"train.frozen_type"}) || job.train.frozen_type == FrozenType::same) return;
  const std::string type(to_string(job.train.frozen_type));
  if (job.adapters.lora == std::nullopt && job.train.freeze.empty())
    r.wrong("train.frozen_type", "nothing is frozen, so nothing is stored as " + type,
            "add adapters, or name parameters in train.freeze");
  else if (job.train.frozen_type != FrozenType::bf16 && !(job.adapters.lora && job.weights && !job.weights->partial))
    r.wrong("train.frozen_type",
            type + " needs adapters, and weights that contain the whole base: checkpoints have no packed weights",
            "add adapters: {lora: {...}} and weights: {from: ...}, or set train.frozen_type: bf16");
  else if (job.fp8)
    r.wrong("train.frozen_type",
            "weights stored as " + type + " are unpacked to bf16, which precision: fp8 would round",
            "set precision: bf16");
  else if (job.parallel.mode == ParallelMode::hybrid_parallel || job.parallel.mode == ParallelMode::parameter_server)
    r.wrong("train.frozen_type", "is not supported in parallel.mode: " + std::string(to_string(job.parallel.mode)),
            "set another parallel.mode, or remove train.frozen_type");
}

/// adapters.lora.dora.
void norms_start_as_those_of_weights(Rules& r) {
  const std::optional<LoraSpec>& lora = r.job.adapters.lora;
  if (!lora || !lora->dora) return;
  if (!r.job.weights)
    r.wrong("adapters.lora.dora", "the job has no weights, whose rows have the norms that it trains",
            "set weights.from to the model folder to fine-tune, or dora: false");
  for (const LayerSpec& layer : r.job.network) {
    const bool trains_bias = layer.attrs.flag("bias", true) && !is_frozen(r.job, layer.name + ".bias");
    const bool is_adapted = !layer.inputs.empty() && !adapter_layers(r.job, layer).empty();
    if (r.job.precision != Precision::bf16 || !trains_bias || !is_adapted) continue;
    r.wrong("train.freeze", "with adapters.lora.dora and precision: bf16, " + layer.name + ".bias cannot be trained",
            "add '" + layer.name + ".bias' to train.freeze, or set precision: fp32");
    break;
  }
}

/// adapters.names and adapters.field.
void several_adapters_have_a_field(Rules& r) {
  const AdaptersSpec& adapters = r.job.adapters;
  if (adapters.names.empty() && adapters.field.empty()) return;
  if (!adapters.lora)
    r.wrong("adapters", "there are several adapters, but not their form", "add lora: {layers: [...]}");
  else if (adapters.names.empty())
    r.wrong("adapters.field", "the adapters have no names", "set adapters.names: [a, b]");
  else if (adapters.field.empty())
    r.wrong("adapters.names", "no field states which adapter a sample uses",
            "set adapters.field to an integer field of the samples");
  for (size_t a = 0; a < adapters.names.size(); ++a) {
    const std::string& name = adapters.names[a];
    const std::string path = "adapters.names[" + number(static_cast<int64_t>(a)) + "]";
    if (name.empty() || name.find_first_of("./*?[] ") != std::string::npos)
      r.wrong(path, "'" + name + "' is not a name", "use letters, digits, _ and -");
    else if (std::find(adapters.names.begin(), adapters.names.begin() + static_cast<std::ptrdiff_t>(a), name) !=
             adapters.names.begin() + static_cast<std::ptrdiff_t>(a))
      r.wrong(path, "'" + name + "' is there twice", "each adapter has its own name");
  }
}

void gradients_in_bf16_are_of_bf16(Rules& r) {
  if (!r.fine({"precision", "gradient_precision"}) || r.job.gradient_precision != Precision::bf16) return;
  if (r.job.precision == Precision::bf16) return;
  r.wrong("gradient_precision",
          "bf16 gradients require precision: bf16, but precision is " + std::string(to_string(r.job.precision)),
          "set precision: bf16, or remove gradient_precision");
}

void audits_replay_on_cores(Rules& r) {
  if (!r.fine({"train.audit_every"}) || r.job.train.audit_every == 0) return;
  if (r.fine({"launch.device"}) && r.job.launch.device != Device::cpu)
    r.wrong(
        "train.audit_every",
        "audits replay steps on other CPU cores, and launch.device is " + std::string(to_string(r.job.launch.device)),
        "set launch.device: cpu, or audit_every: 0");
  if (r.fine({"parallel.mode"}) && r.job.servers() > 0)
    r.wrong("train.audit_every", "audits replay steps of ranks, and parameter servers run outside of steps",
            "set audit_every: 0, or another parallel.mode");
}

/// parallel.sync: false.
void workers_are_on_their_own(Rules& r) {
  if (r.fine({"launch.comm"}) && r.job.launch.comm == "gloo")
    r.wrong("launch.comm", "asynchronous workers exchange messages through shared memory, not gloo",
            "set launch.comm: shm, or parallel.sync: true");
  if (r.fine({"launch.ranks"}) && r.job.launch.ranks > kMostAsyncWorkers)
    r.wrong("launch.ranks",
            number(r.job.launch.ranks) + " asynchronous workers exceed the limit of " + number(kMostAsyncWorkers),
            "set parallel.sync: true, or reduce launch.ranks");
  if (r.fine({"train.histograms"}) && r.job.train.histograms > 0)
    r.wrong("train.histograms", "histograms need steps that all workers share, and asynchronous workers have none",
            "set histograms: 0, or parallel.sync: true");
  if (r.fine({"train.fingerprints"}) && r.job.train.fingerprints > 0)
    r.wrong("train.fingerprints", "fingerprints need steps that all workers share, and asynchronous workers have none",
            "set fingerprints: 0, or parallel.sync: true");
}

/// parallel.sync: true, with tables.
void workers_pull_rows(Rules& r) {
  if (r.fine({"launch.comm"}) && r.job.launch.comm == "gloo")
    r.wrong("launch.comm", "table rows are exchanged through shared memory, not gloo", "set launch.comm: shm");
  if (r.fine({"launch.ranks"}) && r.job.launch.ranks > kMostAsyncWorkers)
    r.wrong(
        "launch.ranks",
        number(r.job.launch.ranks) + " workers that pull table rows exceed the limit of " + number(kMostAsyncWorkers),
        "reduce launch.ranks");
}

void servers_hold_the_weights(Rules& r) {
  if (!r.fine({"parallel.mode"}) || r.job.servers() == 0) return;
  const ParallelSpec& parallel = r.job.parallel;
  if (r.job.is_asynchronous()) workers_are_on_their_own(r);
  if (!r.job.is_asynchronous() && !parallel.tables.empty()) workers_pull_rows(r);
  if (r.fine({"parallel.stages"}) && parallel.stages > 1)
    r.wrong("parallel.stages", "parameter_server supports one pipeline stage, not " + number(parallel.stages),
            "set parallel.stages: 1, or parallel.mode: data_parallel");
  if (r.fine({"parallel.optimizer_shard.level"}) && parallel.optimizer_shard.level > 0)
    r.wrong("parallel.optimizer_shard.level",
            "parameter_server stores the optimizer state on the servers, so the "
            "workers have nothing to shard",
            "set level: 0, or parallel.mode: data_parallel");
  if (r.fine({"parallel.offload.optimizer"}) && parallel.offload.optimizer == StatePlace::host)
    r.wrong("parallel.offload.optimizer",
            "parameter_server stores the optimizer state on the servers, so the workers have nothing to offload",
            "remove offload, or set parallel.mode: data_parallel");
  if (r.fine({"launch.device", "precision"}) && r.job.launch.device == Device::cuda &&
      r.job.precision == Precision::bf16)
    r.wrong("precision", "servers run on CPU cores and update in fp32, so workers on GPUs cannot use bf16",
            "set precision: tf32 or fp32, or parallel.mode: data_parallel");
  if (r.fine({"launch.ranks", "parallel.servers"}) && r.job.processes() > kMaxRanks)
    r.wrong("parallel.servers", number(r.job.launch.ranks) + " workers and " + number(parallel.servers) +
                                    " servers exceed the limit of " + number(kMaxRanks) + " processes");
}

/// Returns the number of nodes or pods; launch.target is not hosts.
int managed_hosts(const LaunchSpec& launch) {
  return launch.target == Target::slurm ? launch.slurm.nodes : launch.kubernetes.pods;
}

void elastic_runs_have_hosts(Rules& r) {
  const LaunchSpec& launch = r.job.launch;
  if (!launch.elastic || !r.fine({"launch.elastic", "launch.hosts", "launch.hostfile", "launch.ranks"})) return;
  const bool is_managed = launch.target != Target::hosts;  // The hosts that the manager assigns are not known yet.
  if (is_managed && r.fine({"launch.target", "launch.slurm.nodes", "launch.kubernetes.pods"}) &&
      managed_hosts(launch) < 2)
    return r.wrong("launch.elastic", "all ranks run on one host, so no host can be lost while others remain",
                   "remove launch.elastic, or request more hosts");
  if (!is_managed && !launch.has_hosts())
    return r.wrong("launch.elastic", "all ranks run on this host, so no host can be lost while others remain",
                   "remove launch.elastic, or list hosts in launch.hosts");
  if (launch.elastic->min_ranks > launch.ranks)
    r.wrong("launch.elastic.min_ranks", "is greater than launch.ranks, which is " + number(launch.ranks),
            "set it to launch.ranks or less");
  if (r.fine({"train.checkpoint"}) && !r.job.train.saves_state())
    r.wrong("launch.elastic", "the job does not save its state, so the remaining ranks could not resume",
            "add train.checkpoint, e.g. train: {checkpoint: auto}");
}

/// Fields that say when the state is saved contradict a job that does not save it.
void saves_are_consistent(Rules& r) {
  if (!r.fine({"train.checkpoint"}) || !r.job.train.checkpoint || r.job.train.saves_state()) return;
  const CheckpointSpec& saves = *r.job.train.checkpoint;
  const auto contradicts = [&](bool is_set, const char* field) {
    if (is_set)
      r.wrong(std::string("train.checkpoint.") + field,
              saves.every == "none" ? "`every: none` saves nothing" : "`every: weights` saves once, when the run ends",
              "remove either `every` or this field");
  };
  contradicts(saves.every_steps != 0, "every_steps");
  contradicts(saves.every_epochs != 0, "every_epochs");
  contradicts(saves.every_minutes != 0, "every_minutes");
  contradicts(!saves.keep_best.empty(), "keep_best");
}

void hosts_hold_the_ranks(Rules& r) {
  if (!r.fine({"launch.hosts", "launch.hostfile", "launch.ranks"}) || !r.job.launch.has_hosts()) return;
  const LaunchSpec& launch = r.job.launch;
  if (!launch.hosts.empty() && !launch.hostfile.empty())
    return r.wrong("launch.hostfile", "launch.hosts already lists the hosts", "remove one of the two");
  for (size_t i = 0; i < launch.hosts.size(); ++i)
    if (!parse_host(launch.hosts[i]))
      r.wrong("launch.hosts[" + number(static_cast<int64_t>(i)) + "]", "'" + launch.hosts[i] + "' is not a valid host",
              "write a, me@a, or a:4 for four ranks");
  if (!launch.hosts.empty()) {
    const Placement placement = place_ranks(parse_hosts(launch.hosts), launch.ranks);
    if (!placement.fault.empty()) r.wrong("launch.hosts", placement.fault, placement.hint);
  }
  if (r.job.has_command()) return;
  const auto missing = [&](bool is_set, const std::string& path, const std::string& what, const std::string& hint) {
    if (is_set && r.fine({path.c_str()})) r.wrong(path, what + " is not supported on several hosts", hint);
  };
  missing(launch.comm == "shm", "launch.comm", "shm", "remove launch.comm");
  missing(r.job.servers() > 0, "parallel.mode", "parameter_server", "use data_parallel, or remove launch.hosts");
}

/// launch.target: the manager gives the hosts.
void a_manager_gives_the_hosts(Rules& r) {
  const LaunchSpec& launch = r.job.launch;
  if (!r.fine({"launch.target", "launch.ranks"}) || launch.target == Target::hosts) return;
  const std::string manager(to_string(launch.target));
  for (const char* field : {"launch.hosts", "launch.hostfile"})
    if (r.fine({field}) && (std::string(field) == "launch.hosts" ? !launch.hosts.empty() : !launch.hostfile.empty()))
      r.wrong(field, "with launch.target: " + manager + ", " + manager + " assigns the hosts",
              "remove it, or set launch.target: hosts");
  const std::string field = launch.target == Target::slurm ? "launch.slurm.nodes" : "launch.kubernetes.pods";
  const int hosts = managed_hosts(launch);
  if (r.fine({field.c_str()}) && launch.ranks < hosts)
    r.wrong(field, number(hosts) + " is greater than launch.ranks, which is " + number(launch.ranks),
            "each needs at least one rank: set launch.ranks: " + number(hosts));
}

void volumes_have_a_path(Rules& r) {
  if (!r.fine({"launch.kubernetes.volumes"})) return;
  for (const VolumeSpec& volume : r.job.launch.kubernetes.volumes)
    if (!volume.path.starts_with("/") || (volume.claim + volume.host_path).empty())
      r.wrong("launch.kubernetes.volumes",
              "'" + volume.claim + volume.host_path + ":" + volume.path + "' is not a valid volume",
              "write CLAIM:/path, or /host/folder:/path");
}

/// What needs steps that all ranks share is not for replicas that train on their own.
void replicas_share_no_steps(Rules& r) {
  const JobSpec& job = r.job;
  const auto unsupported = [&](bool is_set, const std::string& field, const std::string& why, const std::string& hint) {
    if (is_set && r.fine({field.c_str()})) r.wrong(field, why, hint + ", or remove parallel.local_steps");
  };
  unsupported(job.parallel.mode == ParallelMode::parameter_server, "parallel.mode",
              "replicas that train local steps have their own weights, and servers would share them",
              "set parallel.mode: data_parallel");
  unsupported(job.parallel.mode == ParallelMode::hybrid_parallel, "parallel.mode",
              "hybrid_parallel has collectives over all ranks, and replicas that train local steps have none",
              "set parallel.mode: semi_auto_parallel");
  unsupported(job.optimizer.average.has_value(), "optimizer.average",
              "the outer weights of parallel.local_steps are used in place of an average", "remove it");
  unsupported(job.optimizer.type == "schedule_free_adamw", "optimizer.type",
              "the outer weights of parallel.local_steps are used in place of the average of schedule_free_adamw",
              "set optimizer.type: adamw");
  unsupported(job.train.histograms > 0, "train.histograms", "each replica has its own weights until they synchronize",
              "set histograms: 0");
  unsupported(job.train.fingerprints > 0, "train.fingerprints",
              "each replica has its own weights until they synchronize", "set fingerprints: 0");
  unsupported(job.train.audit_every > 0, "train.audit_every", "an audit replays a step that all ranks share",
              "set audit_every: 0");
  unsupported(job.validation && job.validation->generate, "validation.generate",
              "texts are generated by ranks that share their weights", "remove it");
  unsupported(!job.print.tensors.empty() && job.print.format == PrintFormat::npy, "print.format",
              "each replica computes its own part of the batch, which is no part of one file", "set format: text");
}

/// parallel.local_steps, replicas and outer.
void replicas_divide_the_ranks(Rules& r) {
  if (!r.fine({"parallel.local_steps", "parallel.replicas", "launch.ranks", "launch.hosts", "launch.hostfile"})) return;
  const ParallelSpec& parallel = r.job.parallel;
  if (parallel.local_steps == 0) {
    if (parallel.replicas > 0)
      r.wrong("parallel.replicas", "replicas have their own weights only between local steps",
              "set parallel.local_steps, or use parallel.data for ranks that share each step");
    return;
  }
  const int64_t replicas = num_replicas(r.job), ranks = r.job.launch.ranks, batch = r.job.dataset.batch;
  if (replicas == 0)
    return r.wrong("parallel.local_steps", "the number of hosts is in a host file, which planning does not read",
                   "set parallel.replicas");
  if (replicas == 1 && parallel.replicas == 0)
    return r.wrong("parallel.local_steps", "all ranks are on one host, so there are no replicas to synchronize",
                   "set parallel.replicas, or list several hosts in launch.hosts");
  const std::string field = parallel.replicas > 0 ? "parallel.replicas" : "parallel.local_steps";
  if (ranks % replicas != 0)
    r.wrong(field, number(ranks) + " ranks cannot be divided evenly into " + number(replicas) + " replicas",
            "possible numbers of replicas for " + number(ranks) + " ranks: " + divisors(ranks));
  const int64_t unit = replicas * parallel.micro_batches;
  if (r.fine({"dataset.batch", "parallel.micro_batches"}) && batch % unit != 0)
    r.wrong("dataset.batch",
            "a batch of " + number(batch) + " samples cannot be divided evenly over " + number(replicas) +
                " replicas and " + number(parallel.micro_batches) + " micro-batches",
            "use a multiple of " + number(unit));
  replicas_share_no_steps(r);
}

void stages_divide_ranks(Rules& r) {
  if (!r.fine({"launch.ranks", "parallel.stages"})) return;
  const int ranks = r.ranks(), stages = r.job.parallel.stages;
  if (ranks % stages == 0) return;
  r.wrong("parallel.stages", number(ranks) + " ranks cannot be divided evenly into " + number(stages) + " stages",
          "possible numbers of stages for " + number(ranks) + " ranks: " + divisors(ranks));
}

void stage_numbers_exist(Rules& r) {
  if (!r.fine({"parallel.stages", "parallel.chunks"})) return;
  const int64_t stages = r.job.parallel.stages, chunks = r.job.parallel.chunks;
  const std::string there = chunks == 1 ? number(stages) + " stages"
                                        : number(stages * chunks) + " virtual stages (" + number(stages) +
                                              " stages of " + number(chunks) + " chunks)";
  for (const StageRule& rule : r.job.parallel.stage_config) {
    if (rule.stage < stages * chunks) continue;
    if (r.job.is_override("parallel.stages") && !r.job.is_override(rule.path))
      continue;  // The rule is ignored (plan/outdated.h).
    r.wrong(rule.path, "stage " + number(rule.stage) + " does not exist: there are " + there + ", counted from 0");
  }
}

void chunks_are_interleaved(Rules& r) {
  if (!r.fine({"parallel.schedule", "parallel.chunks", "parallel.stages"})) return;
  const ParallelSpec& parallel = r.job.parallel;
  const bool interleaved = parallel.schedule == Schedule::interleaved_1f1b;
  const std::string schedule(to_string(parallel.schedule));
  if (!interleaved && parallel.chunks > 1)
    return r.wrong("parallel.chunks",
                   "the schedule " + schedule + " has one chunk of layers per stage, not " + number(parallel.chunks),
                   "set parallel.schedule: interleaved_1f1b");
  if (!interleaved) return;
  if (parallel.chunks == 1)
    return r.wrong("parallel.schedule",
                   "interleaved_1f1b alternates between several chunks of a stage, but "
                   "parallel.chunks is 1",
                   "set parallel.chunks: 2 or more, or parallel.schedule: 1f1b");
  if (parallel.stages == 1)
    return r.wrong("parallel.schedule", "interleaved_1f1b needs several stages, but parallel.stages is 1",
                   "set parallel.stages: 2 or more, or parallel.schedule: 1f1b and parallel.chunks: 1");
  const int64_t micro_batches = parallel.micro_batches, stages = parallel.stages;
  if (!r.fine({"parallel.micro_batches"}) || micro_batches % stages == 0) return;
  const int64_t above = (micro_batches / stages + 1) * stages;
  r.wrong("parallel.micro_batches",
          "interleaved_1f1b processes micro-batches in groups of one per stage, but " + number(micro_batches) +
              " micro-batches cannot be divided into groups of " + number(stages),
          "for " + number(stages) + " stages, use " + (micro_batches > stages ? number(above - stages) + " or " : "") +
              number(above));
}

/// parallel.data, tensor and context.
void sizes_cover_the_ranks(Rules& r) {
  if (!r.fine({"parallel.mode", "parallel.data", "parallel.tensor", "parallel.context", "parallel.context_method",
               "parallel.stages", "launch.ranks"}))
    return;
  const ParallelSpec& parallel = r.job.parallel;
  if (parallel.context == 1 && parallel.context_method != ContextMethod::automatic)
    r.wrong("parallel.context_method",
            "context_method " + std::string(to_string(parallel.context_method)) +
                " has no effect, because parallel.context is 1",
            "set parallel.context, or remove context_method");
  if (!parallel.has_sizes()) return;
  const std::string first = parallel.context > 1  ? "parallel.context"
                            : parallel.tensor > 1 ? "parallel.tensor"
                                                  : "parallel.data";
  if (parallel.mode != ParallelMode::semi_auto_parallel)
    return r.wrong(first,
                   "sizes of data, tensor and context parallelism are for semi_auto_parallel, not for " +
                       std::string(to_string(parallel.mode)),
                   "set parallel.mode: semi_auto_parallel, or remove them");
  const int64_t ranks = r.ranks(), stages = parallel.stages;
  if (ranks % stages != 0) return;
  const int64_t fixed = int64_t{parallel.tensor} * parallel.context, per_stage = ranks / stages;
  const std::string of_stage = stages > 1 ? " of a stage" : "";
  const std::string sizes = "tensor " + number(parallel.tensor) + " x context " + number(parallel.context);
  if (parallel.data > 0 && parallel.data * fixed != per_stage)
    return r.wrong("parallel.data",
                   "data " + number(parallel.data) + " x " + sizes + " is " + number(parallel.data * fixed) +
                       " ranks, but the job has " + number(per_stage) + " ranks" + of_stage,
                   "set launch.ranks: " + number(parallel.data * fixed * stages) + ", or omit data");
  if (per_stage % fixed != 0)
    r.wrong(
        first,
        sizes + " is " + number(fixed) + " ranks, which do not divide the " + number(per_stage) + " ranks" + of_stage,
        "possible products for " + number(per_stage) + " ranks: " + divisors(per_stage));
}

void blocks_are_shuffled(Rules& r) {
  if (!r.fine({"dataset.shuffle", "dataset.shuffle_block"})) return;
  if (r.job.dataset.shuffle || r.job.dataset.shuffle_block == 0) return;
  r.wrong("dataset.shuffle_block", "shuffle_block has no effect, because dataset.shuffle is false",
          "remove it, or set dataset.shuffle: true");
}

void micro_batches_divide_the_batch(Rules& r) {
  if (!r.fine({"dataset.batch", "parallel.micro_batches"})) return;
  const int64_t batch = r.job.dataset.batch, parts = r.job.parallel.micro_batches;
  if (batch % parts != 0) {
    r.wrong(
        "parallel.micro_batches",
        "a batch of " + number(batch) + " samples cannot be divided evenly into " + number(parts) + " micro-batches",
        "possible numbers of micro-batches: " + divisors(batch));
    return;
  }
  if (r.job.parallel.mode != ParallelMode::hybrid_parallel || r.job.parallel.full_batch) return;
  if (!r.fine({"launch.ranks", "parallel.stages", "parallel.full_batch"}) || r.job.launch.ranks % r.job.parallel.stages)
    return;
  const int ranks = r.ranks_per_stage();
  if ((batch / parts) % ranks == 0) return;
  r.wrong("dataset.batch",
          "hybrid_parallel splits each micro-batch over the ranks of a stage, but a micro-batch of " +
              number(batch / parts) + " cannot be divided evenly over the " + number(ranks) + " ranks of a stage",
          "change dataset.batch, or set parallel.full_batch: true so that each rank uses the whole micro-batch");
}

void experts_have_strategies(Rules& r) {
  if (r.fine({"parallel.mode", "parallel.expert", "parallel.expert_method"}) && r.job.parallel.expert == 1 &&
      r.job.parallel.expert_method != ExpertMethod::automatic)
    r.wrong("parallel.expert_method",
            "expert_method " + std::string(to_string(r.job.parallel.expert_method)) +
                " has no effect, because parallel.expert is 1",
            "set parallel.expert, or remove expert_method");
  if (!r.fine({"parallel.mode", "parallel.expert"}) || r.job.parallel.expert <= 1) return;
  const ParallelMode mode = r.job.parallel.mode;
  if (mode == ParallelMode::semi_auto_parallel) return;
  r.wrong("parallel.expert", "it is short for strategies, which " + std::string(to_string(mode)) + " does not read",
          mode == ParallelMode::auto_parallel ? "auto_parallel chooses the cuts of experts itself: remove the field"
                                              : "set parallel.mode: semi_auto_parallel");
}

void collectives_only_in_hybrid(Rules& r) {
  if (!r.fine({"parallel.mode"}) || r.job.parallel.mode == ParallelMode::hybrid_parallel) return;
  for (const LayerSpec& layer : r.job.network) {
    if (!find_layer_type(layer.type)->collective) continue;
    r.wrong(layer.path + ".type", layer.type + " layers are only for hybrid_parallel; " +
                                      std::string(to_string(r.job.parallel.mode)) +
                                      " inserts collectives "
                                      "automatically");
  }
}

/// Each rank of the stage must be in exactly one list, and all lists must have the same length.
std::string group_fault(const std::vector<Ints>& groups, int ranks) {
  std::set<int64_t> seen;
  for (const Ints& group : groups) {
    if (group.size() != groups.front().size()) return "all lists must have the same length";
    for (const int64_t rank : group) {
      if (rank >= ranks) return "rank " + number(rank) + " does not exist: a stage has ranks 0 to " + number(ranks - 1);
      if (!seen.insert(rank).second) return "rank " + number(rank) + " appears twice";
    }
  }
  if (seen.size() != static_cast<size_t>(ranks))
    return "each of the " + number(ranks) + " ranks of a stage must be in exactly one list, but only " +
           number(static_cast<int64_t>(seen.size())) + " are";
  return "";
}

void groups_cover_the_stage(Rules& r) {
  if (!r.fine({"launch.ranks", "parallel.stages", "parallel.mode"}) || r.job.launch.ranks % r.job.parallel.stages)
    return;
  if (r.job.parallel.mode != ParallelMode::hybrid_parallel) return;
  for (const LayerSpec& layer : r.job.network) {
    const std::string path = layer.path + ".group";
    if (!find_layer_type(layer.type)->collective) continue;
    size_t size = static_cast<size_t>(r.ranks_per_stage());
    if (layer.attrs.has("group")) {
      if (!r.fine({path.c_str()})) continue;
      const std::vector<Ints> groups = layer.attrs.int_lists("group");
      const std::string fault =
          groups.empty() ? "must have at least one list" : group_fault(groups, r.ranks_per_stage());
      if (!fault.empty()) {
        r.wrong(path, fault, "e.g. [[0, 1], [2, 3]]");
        continue;
      }
      size = groups.front().size();
    }
    if (layer.attrs.integer("root", 0) >= static_cast<int64_t>(size))
      r.wrong(layer.path + ".root", "root " + number(layer.attrs.integer("root")) + " does not exist: the group has " +
                                        number(static_cast<int64_t>(size)) + " ranks, counted from 0");
  }
}

void labels_suit_the_loss(Rules& r) {
  if (!r.job.loss || !r.fine({"loss", "dataset.label_dtype", "dataset.type"})) return;
  const EntryType& loss = *find_type(loss_types(), r.job.loss->type);
  if (has_soft_labels(r.job.dataset)) {  // Soft labels are f32 regardless of label_dtype.
    if (r.job.loss->attrs.has("ignore_index"))
      r.wrong("loss.ignore_index", "cannot be used, because one_hot turns the labels into class probabilities",
              "remove it");
    return;
  }
  const std::string wanted = loss.labels_are_classes ? "i32" : "f32";
  if (r.job.dataset.has_class_texts() && wanted != "i32")
    r.wrong("loss", r.job.loss->type + " needs f32 labels, but dataset.label_field has classes",
            "use softmax_cross_entropy for classes");
  const bool has_pairs = r.job.dataset.type == "preference";
  if (has_pairs != (r.job.loss->type == "dpo"))
    r.wrong("loss",
            has_pairs ? "the labels of a preference data set are for dpo, not for " + r.job.loss->type
                      : "dpo compares chosen and rejected answers, which a data set of type " + r.job.dataset.type +
                            " does not have",
            has_pairs ? "loss: {type: dpo}" : "use a data set of type preference");
  if (r.job.dataset.has_class_texts() || has_pairs) return;
  if (r.job.dataset.has_tokens()) {
    if (wanted != "i32")
      r.wrong(
          "loss",
          r.job.loss->type + " needs f32 labels, but the labels of a " + r.job.dataset.type + " data set are tokens",
          "use softmax_cross_entropy for tokens");
    return;
  }
  if (r.job.dataset.label_dtype != wanted)
    r.wrong(r.job.positions.contains("dataset.label_dtype") ? "dataset.label_dtype" : "loss",
            r.job.loss->type + " needs " + wanted + " labels, but dataset.label_dtype is " + r.job.dataset.label_dtype,
            "set dataset.label_dtype: " + wanted);
}

/// The label of positions that are not trained, which the loss has to ignore (document_set.h).
constexpr int64_t kUntrained = -100;

bool reads_documents(const Rules& r) {
  return std::any_of(r.job.network.begin(), r.job.network.end(), [](const LayerSpec& layer) {
    return std::find(layer.inputs.begin(), layer.inputs.end(), "documents") != layer.inputs.end();
  });
}

void pairs_suit_the_job(Rules& r) {
  const DatasetSpec& set = r.job.dataset;
  if (set.type != "preference" || !r.fine({"dataset", "network"})) return;
  if (set.tokenizer.empty())
    r.wrong("dataset.type", "preference needs the tokenizer of a model", "add tokenizer: FOLDER");
  if (set.length % 2 != 0)
    r.wrong("dataset.length", "is " + number(set.length) + ", but two answers share a row", "use an even number");
  if (!reads_documents(r))
    r.wrong("dataset.type",
            "puts two answers into a row, but no layer reads the field `documents`, so attention would mix them",
            "add `documents` to the inputs of rotary, position_embedding and attention layers");
}

void documents_suit_the_job(Rules& r) {
  const DatasetSpec& set = r.job.dataset;
  if (!r.fine({"dataset", "loss", "network"})) return;
  const char* needs_tokenizer = set.pack                  ? "dataset.pack"
                                : set.has_class_texts()   ? "dataset.label_field"
                                : !set.json_field.empty() ? "dataset.field"
                                                          : nullptr;
  if (set.type == "text" && set.tokenizer.empty() && needs_tokenizer != nullptr)
    r.wrong(needs_tokenizer, "needs a tokenizer, because without one the bytes of the files are tokens",
            "add tokenizer: FOLDER");
  if (set.has_class_texts() && (set.pack || set.stride != 0))
    r.wrong(set.pack ? "dataset.pack" : "dataset.stride", "cannot be used for texts with a class, one per row",
            "remove it");
  if (!set.has_documents()) return;
  if (set.tokenizer.empty())
    r.wrong("dataset.type", "chat needs the tokenizer and the chat template of a model", "add tokenizer: FOLDER");
  if (set.stride != 0)
    r.wrong("dataset.stride", "cannot be used for documents, each of which begins a row", "remove it");
  if (r.job.loss && r.job.loss->attrs.integer("ignore_index", 0) != kUntrained)
    r.wrong("loss", "has to ignore the label -100 of positions that are not trained",
            "loss: {type: " + r.job.loss->type + ", ignore_index: -100}");
  if (set.pack && !reads_documents(r))
    r.wrong("dataset.pack",
            "puts several documents into a row, but no layer reads the field `documents`, so attention would mix them",
            "add `documents` to the inputs of attention layers, or remove pack");
}

/// A filter can be read; names are known only when documents are.
void filters_are_expressions(Rules& r) {
  const DatasetSpec& set = r.job.dataset;
  if (set.filter.empty() || !r.fine({"dataset"})) return;
  try {
    check_expression(set.filter);
  } catch (const ExpressionError& error) {
    r.wrong("dataset.filter", error.message,
            error.hint.empty() ? "e.g. tokens >= 64 and language == 'en'" : error.hint);
  }
}

/// Fields that need a set of documents, and those that need each other.
void document_fields_agree(Rules& r) {
  const DatasetSpec& set = r.job.dataset;
  if (!r.fine({"dataset"})) return;
  const auto has = [&](const char* field) {
    return r.job.positions.contains(r.in_job(std::string("dataset.") + field));
  };
  if (!set.pack && set.packing != "best_fit")
    r.wrong("dataset.packing", "has no effect, because dataset.pack is false", "set pack: true");
  const bool uses_documents = !set.filter.empty() || set.deduplicate || set.fim > 0 || set.curriculum != "none";
  if (uses_documents && !set.has_documents()) {
    const char* field = !set.filter.empty() ? "dataset.filter"
                        : set.deduplicate   ? "dataset.deduplicate"
                        : set.fim > 0       ? "dataset.fim"
                                            : "dataset.curriculum";
    r.wrong(field,
            set.has_class_texts() ? "cannot be used for texts with a class"
                                  : "needs a tokenizer, because without one the bytes of the files are tokens",
            set.has_class_texts() ? "remove it" : "add tokenizer: FOLDER");
  }
  if (set.fim == 0 && (set.fim_spm != 0.5 || !set.fim_tokens.empty()))
    r.wrong(set.fim_tokens.empty() ? "dataset.fim_spm" : "dataset.fim_tokens",
            "has no effect, because dataset.fim is 0", "set fim: 0.5");
  if (!set.fim_tokens.empty() && set.fim_tokens.size() != 3)
    r.wrong("dataset.fim_tokens", "needs the tokens before the prefix, the suffix and the middle",
            "e.g. [<fim_prefix>, <fim_suffix>, <fim_middle>]");
  if (set.fim > 0 && set.length < 8)
    r.wrong("dataset.fim", "needs rows of at least 8 tokens, of which three mark the parts", "increase dataset.length");
  if (set.fim > 0 && set.packing == "concatenate")
    r.wrong("dataset.fim", "needs whole documents or pieces of them in a row, which packing: concatenate cuts",
            "use packing: best_fit or in_order");
  if (set.curriculum == "none") {
    for (const char* field : {"curriculum_epochs", "curriculum_noise"})
      if ((field == std::string("curriculum_epochs") ? set.curriculum_epochs != 1 : set.curriculum_noise != 0.05) &&
          has(field))
        r.wrong(std::string("dataset.") + field, "has no effect, because there is no curriculum",
                "set curriculum: length");
  } else if (!set.shuffle || set.shuffle_block > 0) {
    r.wrong("dataset.curriculum", "is an order of its own", "remove shuffle and shuffle_block");
  }
}

void metrics_have_classes(Rules& r) {
  if (r.job.metrics.empty() || !r.fine({"metrics", "loss"})) return;
  const MetricSpec& first = r.job.metrics.front();
  if (!r.job.loss)
    r.wrong("metrics", first.type + " needs a loss, because it compares the prediction of the loss with its labels",
            "e.g. loss: softmax_cross_entropy");
  else if (!find_type(loss_types(), r.job.loss->type)->labels_are_classes)
    r.wrong("metrics", first.type + " needs class labels, but the labels of " + r.job.loss->type + " are numbers",
            "use loss: softmax_cross_entropy for classes");
  else if (has_soft_labels(r.job.dataset))
    r.wrong("metrics", first.type + " needs class labels, but one_hot turns them into class probabilities",
            "remove the metric; validation still reports the loss");
  for (size_t i = 0; i < r.job.metrics.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (r.job.metrics[i].type == r.job.metrics[j].type && r.job.metrics[i].attrs == r.job.metrics[j].attrs)
        r.wrong(r.job.metrics[i].path, "is the same metric as " + r.job.metrics[j].path);
}

bool has_source_called(const DatasetSpec& mix, const std::string& name) {
  return std::any_of(mix.sources.begin(), mix.sources.end(), [&](const DatasetSpec& s) { return s.name == name; });
}

std::vector<std::string> source_names(const DatasetSpec& mix) {
  std::vector<std::string> names;
  for (const DatasetSpec& source : mix.sources) names.push_back(source.name);
  return names;
}

void validation_names_sources(Rules& r) {
  const DatasetSpec& set = r.job.validation->dataset;
  if (!r.job.dataset.is_mix()) {
    if (!set.source_paths.empty())
      r.wrong("validation.dataset.sources", "is for a mixture, but dataset.type is " + r.job.dataset.type,
              "set validation.dataset.path");
    return;
  }
  if (!set.paths.empty())
    r.wrong("validation.dataset.path", "a mixture has several sources",
            "validation: {dataset: {sources: {" + r.job.dataset.sources.front().name + ": PATH}}}");
  for (const auto& [name, paths] : set.source_paths)
    if (!has_source_called(r.job.dataset, name))
      r.wrong("validation.dataset.sources." + name, "there is no source '" + name + "'",
              did_you_mean(name, source_names(r.job.dataset)));
}

void validation_fits(Rules& r) {
  if (!r.job.validation || !r.fine({"validation", "dataset.type"})) return;
  const ValidationSpec& validation = *r.job.validation;
  const DatasetSpec& set = validation.dataset;
  if (r.fine({"dataset"})) validation_names_sources(r);
  if (r.job.dataset.is_mix()) {
    if (!r.job.loss) r.wrong("validation", "a validation needs a loss", "e.g. loss: softmax_cross_entropy");
    for (const char* field : {"split", "samples"})
      if (r.job.positions.contains(std::string("validation.dataset.") + field))
        r.wrong(std::string("validation.dataset.") + field, "cannot be used for a mixture",
                "set it in dataset.sources, or name files in validation.dataset.sources");
    return;
  }
  const std::string& type = r.job.dataset.type;
  const bool has_files = type != "random" && type != "constant" && type != "clicks";
  if (!r.job.loss) r.wrong("validation", "a validation needs a loss", "e.g. loss: softmax_cross_entropy");
  if (!set.paths.empty() && !has_files)
    r.wrong("validation.dataset.path", "a " + type + " data set has no files", "set validation.dataset.samples");
  if (is_one_folder(r.job.dataset) && set.paths.size() > 1 && set.labels)
    r.wrong("validation.dataset.path",
            "a " + type + " data set is one folder, not " + number(static_cast<int64_t>(set.paths.size())));
  if (!set.split.empty() && !r.job.dataset.has_file_splits())
    r.wrong("validation.dataset.split",
            "split is only for the types mnist, cifar10 and cifar100, but dataset.type is " + type,
            "set validation.dataset.path, or dataset.split: {train: 0.9, validation: 0.1}");
  if (set.samples > 0 && has_files)
    r.wrong("validation.dataset.samples",
            "samples is only for the types random, constant and clicks, but dataset.type is " + type);
}

/// Plans that text generation does not support are errors of plan_generation().
void validation_generates(Rules& r) {
  if (!r.job.validation || !r.job.validation->generate) return;
  if (!r.fine({"validation", "dataset.type", "parallel.mode", "launch.hosts", "launch.hostfile", "launch.target",
               "launch.slurm.nodes", "launch.kubernetes.pods"}))
    return;
  const LaunchSpec& launch = r.job.launch;
  const std::string field = "validation.generate", remedy = "remove it, and use `trainctl generate` on a checkpoint";
  if (launch.has_hosts() || (launch.target != Target::hosts && managed_hosts(launch) > 1))
    r.wrong(field, "is not supported on several hosts", remedy);
  if (r.job.parallel.mode == ParallelMode::parameter_server)
    r.wrong(field, "is not supported in parameter_server mode", remedy);
  if (!r.job.dataset.has_tokens() && r.job.dataset.type != "preference")
    r.wrong(field, "needs a data set of tokens, but dataset.type is " + r.job.dataset.type,
            "remove it, or use tokens, text, chat or preference");
}

/// A validation on the training samples would not detect overfitting. If the job names them explicitly, it is only a
/// warning (warnings.cpp).
void validation_has_samples_of_its_own(Rules& r) {
  if (!r.job.validation || !r.fine({"validation", "dataset.type", "dataset.split"})) return;
  const DatasetSpec& training = r.job.dataset;
  const DatasetSpec& set = r.job.validation->dataset;
  if (training.is_mix()) {
    const bool has_shares = std::any_of(training.sources.begin(), training.sources.end(),
                                        [](const DatasetSpec& source) { return source.validation_share > 0; });
    if (set.source_paths.empty() && !has_shares)
      r.wrong("validation", "must have its own samples; otherwise it would evaluate the training samples",
              "name held-out files of the sources in validation.dataset.sources");
    return;
  }
  const bool is_made = training.type == "random" || training.type == "constant" || training.type == "clicks";
  if (!training.labels || is_made || training.has_shares() || !set.paths.empty() || !set.split.empty()) return;
  r.wrong("validation", "must have its own samples; otherwise it would evaluate the training samples",
          training.has_file_splits() ? "validation: {dataset: {split: test}}"
          : training.has_source()    ? "set validation.dataset.path, or dataset.split: {train: 0.9, validation: 0.1}"
                                     : "set validation.dataset.path to text that is not used for training");
}

/// `told`: accept only metrics that the validation reports.
void metric_is_known(Rules& r, const std::string& path, const std::string& name, bool told) {
  std::vector<std::string> all = r.job.reported_metrics();
  if (!told) {
    all = r.job.metric_names();
    all.insert(all.begin(), "loss");
  }
  if (std::find(all.begin(), all.end(), name) != all.end()) return;
  const std::string guess = did_you_mean(name, all);
  r.wrong(path, "there is no metric '" + name + "'" + (told ? " of validation" : " in this job"),
          guess.empty() ? "available: " + join(all) + "; add others to the job's `metrics`" : guess);
}

void validation_has_metrics(Rules& r) {
  if (!r.fine({"metrics", "validation", "train"})) return;
  const auto need = [&](const std::string& path, const std::string& metric) {
    if (r.job.validation) return metric_is_known(r, path, metric, true);
    r.wrong(path, "there is no validation to report '" + metric + "'", "add validation: {dataset: ...}");
  };
  if (r.job.validation)
    for (size_t i = 0; i < r.job.validation->metrics.size(); ++i)
      metric_is_known(r, "validation.metrics[" + std::to_string(i) + "]", r.job.validation->metrics[i], false);
  const TrainSpec& train = r.job.train;
  if (train.checkpoint && !train.checkpoint->keep_best.empty())
    need("train.checkpoint.keep_best", train.checkpoint->keep_best);
  if (!train.stop_when) return;
  need("train.stop_when.metric", train.stop_when->metric);
  if (!train.stop_when->reaches && train.stop_when->patience == 0)
    r.wrong("train.stop_when", "needs 'reaches' or 'patience'", "e.g. {metric: accuracy, reaches: 0.97}");
}

void one_folder_of_files(Rules& r) {
  if (r.fine({"dataset.type", "dataset.path"}) && is_one_folder(r.job.dataset) && r.job.dataset.paths.size() > 1 &&
      r.job.dataset.labels)
    r.wrong("dataset.path", "a " + r.job.dataset.type + " data set is one folder, not " +
                                number(static_cast<int64_t>(r.job.dataset.paths.size())));
}

/// Shares of known sources, of which at least one is above 0.
void shares_name_sources(Rules& r, const std::string& path, const std::vector<SourceShare>& shares) {
  double sum = 0;
  for (const SourceShare& share : shares) {
    sum += share.share;
    if (!has_source_called(r.job.dataset, share.source))
      r.wrong(path + "." + share.source, "there is no source '" + share.source + "'",
              did_you_mean(share.source, source_names(r.job.dataset)));
  }
  if (!shares.empty() && !(sum > 0)) r.wrong(path, "has no share above 0");
}

void mixtures_fit(Rules& r) {
  const DatasetSpec& mix = r.job.dataset;
  if (!mix.is_mix() || !r.fine({"dataset"})) return;
  const auto not_of_a_mix = [&](const char* field, bool is_set, const char* hint) {
    if (is_set) r.wrong(std::string("dataset.") + field, "cannot be used for a mixture", hint);
  };
  not_of_a_mix("shuffle", !mix.shuffle, "set it in dataset.sources");
  not_of_a_mix("shuffle_block", mix.shuffle_block > 0, "set it in dataset.sources");
  not_of_a_mix("repeat", mix.repeat != 1, "remove it: sources are repeated by their shares");
  not_of_a_mix("drop_last", !mix.drop_last, "remove it: every batch of a mixture is full");
  if (r.job.is_asynchronous())
    r.wrong("dataset.type", "a mixture cannot be used with asynchronous servers", "set another parallel.mode");
  shares_name_sources(r, "dataset.mix", mix.mix);
  for (size_t i = 0; i < mix.mix_schedule.size(); ++i) {
    const ShareChange& change = mix.mix_schedule[i];
    shares_name_sources(r, change.path + ".mix", change.shares);
    if (i > 0 && change.step < mix.mix_schedule[i - 1].step + mix.mix_schedule[i - 1].ramp)
      r.wrong(change.path + ".step", "step " + number(change.step) + " is before the end of the previous change",
              "steps ascend, and a ramp ends before the next one begins");
  }
  std::set<std::string> names;
  for (const DatasetSpec& source : mix.sources) {
    if (!names.insert(source.name).second)
      r.wrong("dataset.sources." + source.name, "there are two sources '" + source.name + "'");
    for (const TransformSpec& transform : source.transforms)
      if (is_of_batch(transform))
        r.wrong(transform.path, transform.name + " mixes rows of a batch, which cannot be used in a mixture",
                "remove it");
  }
}

void stores_suit_the_type(Rules& r) {
  const DatasetSpec& set = r.job.dataset;
  if (!r.fine({"dataset.type", "dataset.path"})) return;
  const std::vector<std::string> types = {"tar",    "csv",  "npy",  "npz",        "safetensors",
                                          "tokens", "text", "chat", "preference", "table"};
  const bool reads_stores = std::find(types.begin(), types.end(), set.type) != types.end();
  for (size_t i = 0; i < set.paths.size(); ++i) {
    const std::string field =
        set.paths.size() > 1 ? "dataset.path[" + number(static_cast<int64_t>(i)) + "]" : "dataset.path";
    if (is_url(set.paths[i]) && !reads_stores)
      r.wrong(field, "a data set of type " + set.type + " cannot be read from an object store",
              set.type == "image_folder" ? "write the images into tar shards, which can" : "download its files");
    const bool has_user = is_url(set.paths[i]) && set.paths[i].starts_with("http") &&
                          shown_url(set.paths[i]) != set.paths[i].substr(0, set.paths[i].find_first_of("?#"));
    if (has_user)
      r.wrong(field, "must not contain a user name or password", "jobs are saved; use a signed address or a store");
  }
  if (is_url(set.tokenizer))
    r.wrong("dataset.tokenizer", "cannot be read from an object store", "download the tokenizer");
}

void samples_have_their_fields(Rules& r) {
  if (!r.fine({"dataset"}) || !r.job.dataset.has_source()) return;
  const DatasetSpec& d = r.job.dataset;
  const bool by_file = d.has_file_splits();
  if (d.has_shares() && by_file)
    r.wrong("dataset.split", "a " + d.type + " data set has separate files for validation",
            "validation: {dataset: {split: test}}");
  if (!by_file && r.job.positions.contains("dataset.split") && !d.has_shares())
    r.wrong("dataset.split", "split: " + d.split + " is only for the types mnist, cifar10 and cifar100",
            "e.g. {train: 0.9, validation: 0.1}");
  if (d.fields.empty() && (d.type == "csv" || d.type == "table" || d.type == "npy"))
    r.wrong("dataset", "a " + d.type + " data set needs 'fields'",
            d.type != "npy" ? "e.g. fields: {features: [age, height], label: species}"
                            : "e.g. fields: {data: images.npy, label: labels.npy}");
  for (const SampleFieldSpec& field : d.fields)
    if (field.parts.size() > 1 && d.type != "csv" && d.type != "table" && d.type != "tar")
      r.wrong("dataset.fields." + field.name, "a field of a " + d.type + " data set comes from one array, not " +
                                                  number(static_cast<int64_t>(field.parts.size())));
  if (d.fields.size() > kMaxSampleFields)
    r.wrong("dataset.fields", "a sample has at most " + number(static_cast<int64_t>(kMaxSampleFields)) +
                                  " fields, not " + number(static_cast<int64_t>(d.fields.size())));
  if (!d.weights.empty() && d.weights.size() != d.paths.size())
    r.wrong("dataset.weights",
            number(static_cast<int64_t>(d.weights.size())) + " weights for " +
                number(static_cast<int64_t>(d.paths.size())) + " paths",
            "give one weight per path");
  if (d.type == "csv" && d.delimiter.size() != 1 && d.delimiter != "tab")
    r.wrong("dataset.delimiter", "'" + d.delimiter + "' is not one character", "e.g. ';', or tab");
  if (d.channels == 2) r.wrong("dataset.channels", "an image has 1 or 3 channels, not 2");
  const std::vector<std::string> names = d.field_names();
  if (r.job.loss && std::find(names.begin(), names.end(), "label") == names.end())
    r.wrong("loss", "the loss needs a sample field 'label', but the samples have only " + join(names),
            "call one of dataset.fields 'label'");
}

void random_integers_have_classes(Rules& r) {
  const DatasetSpec& d = r.job.dataset;
  if (!r.fine({"dataset.type", "dataset.dtype", "dataset.label_dtype", "dataset.classes"}) || d.type != "random")
    return;
  if (d.classes > 0 || !(d.dtype == "i32" || (r.job.loss && d.label_dtype == "i32"))) return;
  r.wrong("dataset.classes", "a random data set of integers needs 'classes'",
          "integers are drawn from 0 to classes - 1");
}

void constant_integers_are_whole(Rules& r) {
  const DatasetSpec& d = r.job.dataset;
  if (!r.fine({"dataset.type", "dataset.dtype", "dataset.value"}) || d.type != "constant" || d.dtype != "i32") return;
  if (d.value == std::trunc(d.value) && std::abs(d.value) <= std::numeric_limits<int32_t>::max()) return;
  r.wrong("dataset.value", "the value of i32 data cannot be " + to_string(Value(d.value)),
          "use an integer below 2^31, or set dataset.dtype: f32");
}

void batches_are_finite(Rules& r) {
  if (!r.fine({"dataset"})) return;
  for (const auto& [name, shape] : {std::pair{"dataset.shape", r.job.dataset.shape},
                                    {"dataset.label_shape", r.job.dataset.label_shape},
                                    {"dataset.length", Ints{r.job.dataset.length}}}) {
    double elements = static_cast<double>(r.job.dataset.batch);
    for (const int64_t size : shape) elements *= static_cast<double>(size);
    if (shape.size() > static_cast<size_t>(kMaxDims))
      r.wrong(name, "a sample has at most " + number(static_cast<int64_t>(kMaxDims)) + " dims, not " +
                        number(static_cast<int64_t>(shape.size())));
    else if (elements > static_cast<double>(kMaxBatchElements))
      r.wrong(name, "a batch of " + number(r.job.dataset.batch) + " samples of " + format_list(shape) +
                        " has more than " + with_commas(kMaxBatchElements) + " elements");
  }
}

void schedules_fit(Rules& r) {
  const ScheduleSpec& s = r.job.optimizer.learning_rate;
  if (!r.fine({"optimizer"})) return;
  const auto need_ascending = [&](const char* field, const Ints& steps) {
    for (size_t i = 1; i < steps.size(); ++i)
      if (steps[i] <= steps[i - 1])
        return r.wrong(std::string("optimizer.learning_rate.") + field,
                       "steps must ascend, but " + number(steps[i]) + " follows " + number(steps[i - 1]));
  };
  need_ascending("milestones", s.milestones);
  need_ascending("points", s.points);
  if (s.type == "piecewise" && (s.points.empty() || s.points.size() != s.rates.size()))
    r.wrong("optimizer.learning_rate.rates",
            "there are " + number(static_cast<int64_t>(s.rates.size())) + " rates for " +
                number(static_cast<int64_t>(s.points.size())) + " points",
            "e.g. points: [0, 100, 1000], rates: [0, 0.1, 0.001]");
  if (s.total_steps == 0 && s.end(1) == 0 && s.type != "cosine_restarts") return;
  if (s.type == "wsd" && s.total_steps > 0 && s.warmup_steps + s.decay_steps > s.total_steps)
    r.wrong("optimizer.learning_rate.decay_steps", "the warm-up of " + number(s.warmup_steps) + " and the decay of " +
                                                       number(s.decay_steps) +
                                                       " steps are longer than total_steps: " + number(s.total_steps));
  if (s.total_steps > 0 && s.warmup_steps >= s.total_steps)
    r.wrong("optimizer.learning_rate.warmup_steps",
            "the warm-up of " + number(s.warmup_steps) +
                " steps is not shorter than total_steps: " + number(s.total_steps));
  if (s.min > s.base)
    r.wrong("optimizer.learning_rate.min",
            "min " + to_string(Value(s.min)) + " is greater than base " + to_string(Value(s.base)));
}

void one_way_of_clipping(Rules& r) {
  if (r.fine({"optimizer"}) && r.job.optimizer.clip_norm > 0 && r.job.optimizer.clip_value > 0)
    r.wrong("optimizer.clip_value", "gradients are clipped by norm already (clip_norm)", "remove one of both");
  if (r.fine({"optimizer"}) && r.job.optimizer.clip_parameter_norm > 0 &&
      (r.job.optimizer.clip_norm > 0 || r.job.optimizer.clip_value > 0))
    r.wrong("optimizer.clip_parameter_norm", "gradients are clipped already (clip_norm or clip_value)",
            "remove one of both");
}

void averages_need_one_update(Rules& r) {
  if (!r.fine({"optimizer", "parallel.mode"})) return;
  const EntryType* type = find_type(optimizer_types(), r.job.optimizer.type);
  if (type == nullptr) return;
  if (type->averages && r.job.optimizer.average)
    r.wrong("optimizer.average", type->name + " averages the weights itself", "remove it");
  if (r.job.parallel.mode != ParallelMode::parameter_server) return;
  if (r.job.optimizer.average || type->averages)
    r.wrong(type->averages ? "optimizer.type" : "optimizer.average",
            "parameter servers keep no averages of the weights", "use another parallel.mode, e.g. data_parallel");
}

/// A rank must hold each parameter whole where it is updated.
void whole_parameters_are_not_cut(Rules& r) {
  if (!r.fine({"optimizer", "parallel", "gradient_precision"})) return;
  const EntryType* type = find_type(optimizer_types(), r.job.optimizer.type);
  const bool clips = r.job.optimizer.clip_parameter_norm > 0;
  if (type == nullptr || (!clips && !type->needs_whole_parameters)) return;
  const std::string field = clips ? "optimizer.clip_parameter_norm" : "optimizer.type";
  const std::string what = clips ? "clip_parameter_norm" : type->name;
  const ParallelSpec& parallel = r.job.parallel;
  if (parallel.mode == ParallelMode::parameter_server || parallel.mode == ParallelMode::hybrid_parallel)
    return r.wrong(
        field,
        what + " needs whole parameters, which " + std::string(to_string(parallel.mode)) + " does not keep on a rank",
        "use another parallel.mode, e.g. data_parallel");
  if (parallel.optimizer_shard.level > 2)
    r.wrong(field, what + " needs whole parameters, of which optimizer_shard.level 3 keeps parts",
            "set parallel.optimizer_shard.level: 2");
  if (clips && r.job.gradient_precision == Precision::bf16)
    r.wrong(field, "clip_parameter_norm needs gradients in fp32", "remove gradient_precision: bf16");
}

void sums_need_all_labels(Rules& r) {
  if (r.fine({"loss"}) && r.job.loss && r.job.loss->reduction == "sum" && r.job.loss->attrs.has("ignore_index"))
    r.wrong("loss.reduction", "a sum does not support ignore_index, whose mean is over the labels that count",
            "remove ignore_index, or set reduction: mean");
}

void skipping_needs_one_update(Rules& r) {
  if (!r.fine({"train.on_nan", "parallel.mode", "metrics"}) || r.job.train.on_nan != OnNan::skip) return;
  if (r.job.parallel.mode == ParallelMode::parameter_server)
    r.wrong("train.on_nan", "parameter servers cannot skip a step", "set train.on_nan: stop or warn");
  if (r.job.metrics.size() >= kMaxMetrics)
    r.wrong("train.on_nan", "skip counts in a metric of its own, and there are " + number(kMaxMetrics) + " already",
            "remove a metric");
}

/// Errors that only the types themselves can detect: an invalid permutation, a field that needs another.
void fields_agree(Rules& r) {
  const auto ask = [&](const EntryType& type, const Attrs& attrs, const std::string& path, const std::string& use) {
    if (type.faults == nullptr || r.problems.touch(path)) return;
    for (const FieldFault& fault : type.faults(attrs)) {
      const std::string separator = fault.hint.empty() || use.empty() ? "" : "; ";
      r.wrong(path + "." + fault.field, fault.message, fault.hint + separator + use);
    }
  };
  for (const LayerSpec& layer : r.job.network) ask(*find_layer_type(layer.type), layer.attrs, layer.path, layer.use);
  const OptimizerSpec& optimizer = r.job.optimizer;
  const EntryType* type = find_type(optimizer_types(), optimizer.type);
  if (type == nullptr) return;
  ask(*type, optimizer.attrs, "optimizer", "");
  for (size_t g = 0; g < optimizer.groups.size(); ++g)
    ask(*type, optimizer.settings_of(static_cast<int>(g)), optimizer.groups[g].path, "");
}

}  // namespace

namespace {

/// Rules for one data set: the job's, or each source of a mixture.
void validate_set(Rules& r) {
  blocks_are_shuffled(r);
  labels_suit_the_loss(r);
  documents_suit_the_job(r);
  document_fields_agree(r);
  filters_are_expressions(r);
  pairs_suit_the_job(r);
  stores_suit_the_type(r);
  one_folder_of_files(r);
  samples_have_their_fields(r);
  random_integers_have_classes(r);
  constant_integers_are_whole(r);
  batches_are_finite(r);
}

void validate_sources(const JobSpec& job, Problems& problems) {
  JobSpec with_source = job;
  for (const DatasetSpec& source : job.dataset.sources) {
    with_source.dataset = source;
    with_source.dataset.batch = job.dataset.batch;
    Rules r{with_source, problems, "dataset.sources." + source.name};
    validate_set(r);
  }
}

}  // namespace

void validate(const JobSpec& job, Problems& problems) {
  Rules r{job, problems};
  hosts_hold_the_ranks(r);
  elastic_runs_have_hosts(r);
  saves_are_consistent(r);
  a_manager_gives_the_hosts(r);
  volumes_have_a_path(r);
  if (job.has_command() || problems.touch("command")) return;
  stand_alone_is_one_rank(r);
  gradients_in_bf16_are_of_bf16(r);
  audits_replay_on_cores(r);
  adapters_start_beside_a_base(r);
  frozen_weights_are_packed_beside_adapters(r);
  norms_start_as_those_of_weights(r);
  several_adapters_have_a_field(r);
  servers_hold_the_weights(r);
  replicas_divide_the_ranks(r);
  stages_divide_ranks(r);
  stage_numbers_exist(r);
  chunks_are_interleaved(r);
  sizes_cover_the_ranks(r);
  if (job.dataset.is_mix()) {
    mixtures_fit(r);
    validate_sources(job, problems);
  } else {
    validate_set(r);
  }
  micro_batches_divide_the_batch(r);
  experts_have_strategies(r);
  collectives_only_in_hybrid(r);
  groups_cover_the_stage(r);
  metrics_have_classes(r);
  validation_fits(r);
  validation_generates(r);
  validation_has_samples_of_its_own(r);
  validation_has_metrics(r);
  schedules_fit(r);
  one_way_of_clipping(r);
  averages_need_one_update(r);
  whole_parameters_are_not_cut(r);
  sums_need_all_labels(r);
  skipping_needs_one_update(r);
  fields_agree(r);
}

}  // namespace trainctl
