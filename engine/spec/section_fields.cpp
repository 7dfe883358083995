// The field table of the job's sections. Defaults are the initializers of job_spec.h.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/cluster_fields.h"
#include "engine/spec/dataset_fields.h"
#include "engine/spec/field_makers.h"
#include "engine/spec/fields.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/update_fields.h"

namespace trainctl {
namespace {

const Section& generate_section() {
  using G = GenerateSpec;
  static const Section section{
      "validation.generate",
      "Texts that each validation of a run generates with the current weights, one per prompt. See validation.md.",
      {
          field<&G::prompts>("prompts",
                             "A file with a prompt per line, or *.jsonl with the field prompt or messages; relative to "
                             "the job file. With dataset.type chat, a prompt is a message of a user.")
              .required(),
          field<&G::max_tokens>("max_tokens", "Most tokens that are generated for a prompt.")
              .at_least(1)
              .at_most(1 << 24),
          field<&G::temperature>("temperature", "0: always the most probable token; higher: more random.").at_least(0),
          field<&G::seed>("seed", "The same seed and weights give the same texts, under any plan.").at_least(0),
      }};
  return section;
}

Field generate_field() {
  Field f = make_field("generate", FieldKind::section,
                       "Texts that each validation of a run generates with the current weights, one per prompt.");
  f.section = &generate_section();
  f.stands_for = "prompts";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& generate = static_cast<ValidationSpec*>(enclosing)->generate;
    if (make && !generate) generate.emplace();
    return generate ? &*generate : nullptr;
  };
  return f;
}

const Section& validation_section() {
  using V = ValidationSpec;
  static const Section section{
      "validation",
      "Computes the loss and metrics on held-out samples with the current weights. A validation always follows the "
      "last step.",
      {
          subsection<&V::dataset>("dataset", validation_dataset_section(), "The held-out samples."),
          unless_zero<&V::every_epochs>("every_epochs", "Epochs between validations; 1 if every_steps is omitted too.")
              .at_least(1),
          unless_zero<&V::every_steps>("every_steps", "Steps between validations.").at_least(1),
          list_field<&V::metrics>("metrics", FieldKind::metric_names,
                                  "Metrics to report: loss, and names from the job's `metrics`; all if omitted."),
          generate_field(),
      }};
  return section;
}

Field validation_field() {
  Field f = make_field("validation", FieldKind::section,
                       "Evaluates the model on held-out samples, during the run and with `trainctl evaluate`.")
                .of(JobKind::network);
  f.section = &validation_section();
  f.object = [](void* enclosing, bool make) -> void* {
    auto& validation = static_cast<JobSpec*>(enclosing)->validation;
    if (make && !validation) validation.emplace();
    return validation ? &*validation : nullptr;
  };
  return f;
}

const Section& weights_section() {
  using W = WeightsSpec;
  static const Section section{
      "weights",
      "Weights that a new run starts from. `run --resume` and `--resume-from` prefer their checkpoint. See weights.md.",
      {
          field<&W::from>("from",
                          "A model folder in the format of Hugging Face, a safetensors file, or an index of several; "
                          "relative to the job file. Each rank reads only its part.")
              .required(),
          field<&W::map>("map",
                         "Name map of the tensors: auto (chosen by model_type in the config.json beside the weights), "
                         "a map of `trainctl checkpoint maps`, or a YAML file."),
          field<&W::partial>("partial",
                             "Load the tensors that fit, and initialise the others, such as those of a new head."),
      }};
  return section;
}

Field weights_field() {
  Field f = make_field("weights", FieldKind::section, "Weights that a new run starts from.").of(JobKind::network);
  f.section = &weights_section();
  f.stands_for = "from";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& weights = static_cast<JobSpec*>(enclosing)->weights;
    if (make && !weights) weights.emplace();
    return weights ? &*weights : nullptr;
  };
  return f;
}

Field reaches_field() {
  Field f = make_field("reaches", FieldKind::number,
                       "Stop when the metric reaches this value: loss at or below it, "
                       "any other metric at or above it.");
  f.set = [](void* object, const Value& value) {
    const auto* whole = std::get_if<int64_t>(&value);
    static_cast<StopSpec*>(object)->reaches = whole != nullptr ? static_cast<double>(*whole) : std::get<double>(value);
  };
  f.get = [](const void* object) -> Value {
    const auto& reaches = static_cast<const StopSpec*>(object)->reaches;
    return reaches ? Value(*reaches) : Value(std::string());
  };
  return f;
}

const Section& stop_section() {
  using S = StopSpec;
  static const Section section{
      "train.stop_when",
      "Early stopping: ends the run after a validation that meets a condition.",
      {
          field<&S::metric>("metric", "loss, or a metric that validation reports.").required(),
          reaches_field(),
          unless_zero<&S::patience>("patience", "Stop after this many consecutive validations without an improvement.")
              .at_least(1),
      }};
  return section;
}

Field stop_field() {
  Field f = make_field("stop_when", FieldKind::section,
                       "Early stopping: ends the run after a validation that meets "
                       "a condition.");
  f.section = &stop_section();
  f.object = [](void* enclosing, bool make) -> void* {
    auto& stop = static_cast<TrainSpec*>(enclosing)->stop_when;
    if (make && !stop) stop.emplace();
    return stop ? &*stop : nullptr;
  };
  return f;
}

const Section& checkpoint_section() {
  using C = CheckpointSpec;
  static const Section section{
      "train.checkpoint",
      "What is saved and when. A save always follows the last step and a request to stop. Several `every_*` fields "
      "act independently.",
      {
          unless_zero<&C::every_steps>("every_steps", "Steps between saves.").at_least(1),
          unless_zero<&C::every_epochs>("every_epochs", "Epochs between saves.").at_least(1),
          field<&C::every_minutes>("every_minutes", "Minutes between saves; 0: not time-based.").at_least(0),
          field<&C::every>("every",
                           "auto: saves the whole state; without every_*, the interval follows from the cost of a "
                           "save and the failure rate of the run (Young's formula). weights: saves only the weights "
                           "when the run ends. none: saves nothing.")
              .one_of({"auto", "weights", "none"}),
          field<&C::dir>("dir",
                         "Folder of the checkpoints; do not share it between jobs. Empty: `checkpoints` in the run's "
                         "folder."),
          field<&C::keep>("keep", "Number of most recent checkpoints to keep.").at_least(1),
          field<&C::keep_best>("keep_best",
                               "loss, or a metric of validation: the checkpoint with its best value is "
                               "kept too."),
          field<&C::async>("async",
                           "Training continues while a checkpoint is written; false: it waits until the "
                           "checkpoint is on disk."),
          field<&C::integrated>("integrated",
                                "Also write one file with the full tensors, model.safetensors, to each "
                                "checkpoint."),
      }};
  return section;
}

Field checkpoint_field() {
  Field f = make_field("checkpoint", FieldKind::section,
                       "auto saves the whole state so that `run --resume` can continue the run. Without this field, "
                       "only the final weights are saved; none saves nothing.");
  f.section = &checkpoint_section();
  f.stands_for = "every";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& checkpoint = static_cast<TrainSpec*>(enclosing)->checkpoint;
    if (make && !checkpoint) checkpoint.emplace();
    return checkpoint ? &*checkpoint : nullptr;
  };
  return f;
}

const Section& train_section() {
  using T = TrainSpec;
  static const Section section{
      "train",
      "The length of the training, at most 2^32 - 1 steps, and what it reports and saves.",
      {
          unless_zero<&T::epochs>("epochs",
                                  "Passes through the data set. If omitted, a job with `steps` runs as many epochs "
                                  "as those steps need. If both are set, the run ends at whichever is reached first.")
              .at_least(1),
          field<&T::steps>("steps", "Stop after this number of steps; 0: stop after all epochs.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::log_every>("log_every", "Steps between printed loss lines.").at_least(1),
          field<&T::sink_steps>(
              "sink_steps",
              "Steps between reads of the losses from the device. Every step's loss is still reported, but N steps "
              "at a time, so the host synchronises with the device less often.")
              .at_least(1)
              .at_most(1'000'000),
          field<&T::histograms>(
              "histograms",
              "Steps between histograms of each weight and its gradient for TensorBoard; 0: none. Such a step waits "
              "until its values have been counted.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::fingerprints>(
              "fingerprints",
              "Steps between fingerprints of weights, gradients and optimizer states, for `trainctl diff`; 0: none. "
              "Such a step waits until its values have been read.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::audit_every>("audit_every",
                                 "Steps between two audits, in which each rank replays its last step on another core "
                                 "and compares bits; 0: "
                                 "none. Needs launch.device: cpu.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::on_nan>("on_nan",
                            "If the loss is NaN or infinite: stop ends the run with exit code 5; warn prints one "
                            "warning and continues; skip continues too, and a step whose gradients contain NaN or "
                            "infinity changes neither weights nor optimizer states and counts in the metric "
                            "`skipped`."),
          list_field<&T::freeze>(
              "freeze", FieldKind::metric_names,
              "Parameters that are not trained, by name or glob (`['*']`, `['h.*', 'table.weight']`). "
              "They have no gradient, no optimizer state and no reduction."),
          field<&T::frozen_type>(
              "frozen_type",
              "Storage of the weights of frozen dense layers, except that of the last layer. nf4 and int8: blocks of "
              "64 "
              "elements of a row with their largest magnitude, 4.5 and 8.5 bits per element; bf16: 16 bits; same: the "
              "type that kernels read. They are unpacked for each use. nf4 and int8 need `adapters` and `weights`.")
              .of(JobKind::network),
          checkpoint_field(),
          stop_field(),
      }};
  return section;
}

const Section& optimizer_shard_section() {
  using S = OptimizerShardSpec;
  static const Section section{
      "parallel.optimizer_shard",
      "Shards state that data-parallel ranks would otherwise replicate (ZeRO, HSDP).",
      {
          field<&S::level>("level", "0: nothing, 1: optimizer state, 2: also gradients, 3: also weights.")
              .at_least(0)
              .at_most(3),
          field<&S::min_kb>("min_kb", "Parameters smaller than this many KiB are not sharded.")
              .at_least(0)
              .at_most(kMaxSize),
          field<&S::within_host>("within_host",
                                 "Shard over the ranks of one host only. Every host stores the whole state, and the "
                                 "gradient shards are summed across hosts."),
      }};
  return section;
}

const Section& offload_section() {
  using O = OffloadSpec;
  static const Section section{
      "parallel.offload",
      "State that ranks on GPUs keep in the memory of their host.",
      {
          field<&O::optimizer>("optimizer",
                               "Optimizer state. device: in the memory of the GPU; host: in pinned memory of the host, "
                               "which updates read and write over the bus."),
      }};
  return section;
}

const Section& outer_section() {
  using O = OuterSpec;
  static const Section section{
      "parallel.outer",
      "The outer optimizer of local_steps: SGD on the mean difference between the outer weights and the replicas' weights.",
      {
          field<&O::learning_rate>("learning_rate", "The outer learning rate; 1 without momentum is the mean of the "
                                                    "replicas' weights.")
              .above(0),
          field<&O::momentum>("momentum", "The outer momentum.").at_least(0).below(1),
          field<&O::nesterov>("nesterov", "Nesterov momentum, as in PyTorch's SGD."),
      }};
  return section;
}

const Section& search_section() {
  using S = SearchSpec;
  static const Section section{
      "parallel.search",
      "How auto_parallel chooses the settings that the job omits.",
      {
          field<&S::algorithm>(
              "algorithm",
              "recursive_programming: searches all omitted settings; sharding_propagation: only derives the cuts of "
              "the remaining layers from the given strategies, with the least redistribution; exhaustive: tries "
              "every plan, for small jobs."),
          field<&S::effort>("effort", "How many plans are estimated and how many are tried: see docs/planning.md."),
      }};
  return section;
}

const Section& parallel_section() {
  using P = ParallelSpec;
  static const Section section{
      "parallel",
      "How the network runs on several ranks. None of these fields but local_steps changes the results.",
      {
          field<&P::mode>("mode", "How the plan is determined: see the modes below."),
          field<&P::stages>("stages", "Number of pipeline stages; must divide launch.ranks.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::chunks>("chunks", "Groups of consecutive layers per stage; more than one for interleaved_1f1b.")
              .at_least(1)
              .at_most(kMaxRanks),
          make_field(
              "stage_config", FieldKind::stage_map,
              "The stage of each layer, by name or glob; balanced automatically if omitted. With chunks, the virtual "
              "stage: 0 to stages * chunks - 1."),
          unless_zero<&P::data>("data",
                                "Data parallelism: ranks of a stage that share the batch; default: those that tensor "
                                "and context leave.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::tensor>("tensor", "Tensor parallelism: ranks that share the heads and hidden features.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::context>("context", "Context parallelism: ranks that share the rows of each sequence.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::context_method>(
              "context_method",
              "With context: how attention gets the keys and values of all rows. gather: each rank gathers them; ring: "
              "they are passed from rank to rank; ulysses: ranks exchange rows for heads; auto: the method with the "
              "lowest estimated time."),
          field<&P::micro_batches>("micro_batches",
                                   "Number of micro-batches per batch (gradient accumulation); must divide "
                                   "dataset.batch.")
              .at_least(1)
              .at_most(kMaxMicroBatches),
          field<&P::schedule>("schedule",
                              "Order of the forward and backward passes of the micro-batches: see the schedules "
                              "below."),
          make_field("strategies", FieldKind::strategy_map,
                     "Cuts per dim for each input of a layer, weights included."),
          field<&P::expert>("expert",
                            "Number of ranks over which each moe layer distributes its experts; the other ranks of a "
                            "stage share the batch. Short for strategies of the moe layers that have none.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::expert_method>(
              "expert_method",
              "With expert: how tokens reach the ranks of their experts. gather: each of these ranks receives all "
              "tokens; "
              "all_to_all: a rank receives only the tokens that its experts compute; auto: the method with the lowest "
              "estimated time."),
          make_field("recompute", FieldKind::patterns,
                     "Activation checkpointing: layers, by name or glob, that are computed again in the backward "
                     "pass instead of storing their output."),
          subsection<&P::optimizer_shard>("optimizer_shard", optimizer_shard_section(),
                                          "Shards optimizer state, gradients and weights over data-parallel ranks.")
              .shorthand("level"),
          subsection<&P::offload>("offload", offload_section(), "State in the memory of the host."),
          field<&P::bucket_bytes>("bucket_bytes",
                                  "Bucket size: at optimizer_shard levels 0 to 2, parameters with up to this many "
                                  "bytes of gradients are reduced, updated and gathered together; 0: 32 MiB.")
              .is(FieldKind::bytes)
              .at_least(0),
          field<&P::full_batch>("full_batch",
                                "Each rank reads the whole batch and uses its slice; false: each rank reads only its "
                                "slice."),
          field<&P::head_pieces>(
              "head_pieces",
              "Chunked loss: number of row chunks in which the last matrix product, the loss and their gradients are "
              "computed, so that the full prediction is never in memory; 0: one, or as many as max_memory requires.")
              .at_least(0)
              .at_most(kMaxHeadPieces),
          field<&P::max_memory>("max_memory", "Memory limit per rank; 0: no limit.").is(FieldKind::bytes).at_least(0),
          field<&P::local_steps>(
              "local_steps",
              "DiLoCo: replicas train this many steps on their own parts of the batch, then synchronize their weights "
              "through the outer optimizer; 0: all ranks share every step. Changes the results. See local_steps.md.")
              .at_least(0)
              .at_most(kMaxSize),
          unless_zero<&P::replicas>("replicas",
                                    "With local_steps: number of replicas, each with launch.ranks / replicas ranks under "
                                    "the plan that the other fields describe; default: one per host.")
              .at_least(1)
              .at_most(kMaxRanks),
          subsection<&P::outer>("outer", outer_section(), "The outer optimizer of local_steps."),
          subsection<&P::search>("search", search_section(), "Options of auto_parallel.").shorthand("algorithm"),
          field<&P::servers>("servers",
                             "For parameter_server: number of server processes that store the weights, in "
                             "addition to the workers.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::sync>("sync",
                          "For parameter_server: each step uses the gradients of all workers; with tables, the "
                          "workers all_reduce all other gradients. false: each worker runs its own batches, and the "
                          "servers apply each push at once."),
          field<&P::staleness>("staleness",
                               "For sync: false, and for tables: how many rounds (one batch per worker) a worker may "
                               "be ahead of the oldest unfinished batch; 0: synchronous steps.")
              .at_least(0)
              .at_most(kMaxStaleness),
          field<&P::rebalance>(
              "rebalance",
              "With sync: false, assign each batch to the next idle worker. false: each worker processes a fixed "
              "share of the batches."),
          list_field<&P::tables>(
              "tables", FieldKind::metric_names,
              "For parameter_server: embedding layers, by name or glob, whose tables are stored only on the servers, "
              "partitioned by rows and updated with each push."),
      }};
  return section;
}

const Section& elastic_section() {
  static const Section section{
      "launch.elastic",
      "How the run continues when a host is lost.",
      {
          field<&ElasticSpec::min_ranks>("min_ranks", "The run ends if fewer ranks remain.").at_least(1),
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
          field<&L::machine>("machine",
                             "The machine to plan for: h100x8, …, a name given to trainctl calibrate, or a machine "
                             "file.")
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
          list_field<&L::hosts>("hosts", FieldKind::metric_names,
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
          subsection<&L::kubernetes>("kubernetes", kubernetes_section(),
                                     "Settings of the pods or containers. See kubernetes.md."),
          field<&L::log_files>("log_files", "Log files to keep per stream of a rank; the oldest is deleted.")
              .at_least(1),
      }};
  return section;
}

Field loss_field() {
  Field f = make_field("loss", FieldKind::section, "The loss function: a name or a mapping.").of(JobKind::network);
  f.section = &loss_section();
  f.stands_for = "type";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& loss = static_cast<JobSpec*>(enclosing)->loss;
    if (make && !loss) loss.emplace();
    return loss ? &*loss : nullptr;
  };
  return f;
}

const Section& fp8_section() {
  using F = Fp8Spec;
  static const Section section{
      "fp8",
      "Which layers compute their matrix products from 8-bit factors. All others use bf16.",
      {
          list_field<&F::layers>("layers", FieldKind::metric_names,
                                 "Layers with a weight, by name or glob; all if omitted. A glob does not select the "
                                 "head, which is the layer that the loss reads; give its full name to include it."),
          field<&F::min_weight>("min_weight",
                                "Minimum number of elements of a weight; layers with a smaller weight "
                                "use bf16.")
              .at_least(0),
      }};
  return section;
}

/// Only a job with precision: fp8 has this field.
Field fp8_field() {
  Field f = make_field("fp8", FieldKind::section, "For precision: fp8: which matrix products use 8-bit factors.")
                .of(JobKind::network);
  f.section = &fp8_section();
  f.object = [](void* enclosing, bool) -> void* {
    auto& fp8 = static_cast<JobSpec*>(enclosing)->fp8;
    return fp8 ? &*fp8 : nullptr;
  };
  return f;
}

/// fp8 is bf16 with some products of narrower factors.
Field precision_field() {
  Field f = field<&JobSpec::precision>(
                "precision",
                "fp32; tf32: GPUs may round the operands of matrix products to tf32. bf16 (mixed precision): weights "
                "and activations in bf16; sums, statistics, parameter gradients and optimizer state in fp32. fp8: "
                "like bf16, but the layers selected by `fp8` multiply 8-bit factors (E4M3, one scale per 128 "
                "elements).")
                .of(JobKind::network);
  f.choices.emplace_back("fp8");
  f.set = [](void* object, const Value& value) {
    JobSpec& job = *static_cast<JobSpec*>(object);
    const auto& name = std::get<std::string>(value);
    const bool fp8 = name == "fp8";
    job.precision = fp8 ? Precision::bf16 : enum_value<Precision>(name);
    job.fp8.reset();
    if (fp8) job.fp8.emplace();
  };
  f.get = [](const void* object) -> Value {
    const JobSpec& job = *static_cast<const JobSpec*>(object);
    return std::string(job.fp8 ? "fp8" : to_string(job.precision));
  };
  return f;
}

const Section& lora_section() {
  using L = LoraSpec;
  static const Section section{
      "adapters.lora",
      "Low-rank adapters beside dense layers: y + alpha / rank * B (A x). A and B are trained; everything else is "
      "frozen, unless train.freeze names what is.",
      {
          list_field<&L::layers>("layers", FieldKind::metric_names, "The dense layers, by name or glob.").required(),
          field<&L::rank>("rank", "Rows of A and columns of B.").at_least(1).at_most(kMaxSize),
          field<&L::alpha>("alpha", "Scale of the adapters.").above(0),
          field<&L::dropout>("dropout", "Probability with which an element of an adapter's input is zero.")
              .at_least(0)
              .below(1),
          field<&L::rank_stabilized>("rank_stabilized", "Multiply with alpha / sqrt(rank) instead (rsLoRA)."),
          field<&L::dora>(
              "dora",
              "Train the norms of the rows of the adapted weights too (DoRA): y = m / |W + B A| * (W + B A) x "
              "for each row, with the scale of B A as above."),
          field<&L::from>("from",
                          "A folder in PEFT's format whose adapters a new run starts from; relative to the job file. "
                          "Needs `weights`."),
      }};
  return section;
}

const Section& adapters_section() {
  static const Section section = [] {
    Field lora = make_field("lora", FieldKind::section, "Low-rank adapters (LoRA).");
    lora.section = &lora_section();
    lora.object = [](void* enclosing, bool make) -> void* {
      auto& spec = static_cast<AdaptersSpec*>(enclosing)->lora;
      if (make && !spec) spec.emplace();
      return spec ? &*spec : nullptr;
    };
    using A = AdaptersSpec;
    return Section{"adapters",
                   "Small trained layers beside frozen ones.",
                   {lora,
                    list_field<&A::names>("names", FieldKind::metric_names,
                                          "Several adapters on one base: each sample uses one of them. Needs `field`."),
                    field<&A::field>("field", "The sample field with the number of its adapter in `names`, from 0.")}};
  }();
  return section;
}

const Section& print_section() {
  using P = PrintSpec;
  static const Section section{
      "print",
      "Layers whose output is printed.",
      {
          make_field("tensors", FieldKind::names, "The layers.").required(),
          field<&P::format>(
              "format",
              "text: each rank prints its local shard to its stdout. npy: the ranks write the full tensor of the "
              "global batch to one file in the run's folder."),
          field<&P::every>("every", "Steps between prints; the first step is always printed.").at_least(1),
      }};
  return section;
}

Field print_field() {
  Field f = make_field("print", FieldKind::section, "Layers whose output is printed.").of(JobKind::network);
  f.section = &print_section();
  f.stands_for = "tensors";
  f.object = [](void* enclosing, bool make) -> void* {
    PrintSpec& print = static_cast<JobSpec*>(enclosing)->print;
    return make || !print.tensors.empty() ? &print : nullptr;
  };
  return f;
}

}  // namespace

const Section& job_section() {
  using J = JobSpec;
  // Fields are read in this order: modules before network, and network before the fields that name its layers.
  static const Section section{
      "",
      "The job file.",
      {
          make_field("vars", FieldKind::values,
                     "Named values, for use in expressions such as `${4*d}` in any value "
                     "below.")
              .of(JobKind::network),
          field<&J::name>("name", "Name of the job in output and logs."),
          field<&J::seed>("seed", "Seed of initial weights, dropout and shuffling; at most 2^63 - 1.").at_least(0),
          precision_field(),
          field<&J::gradient_precision>("gradient_precision",
                                        "Type in which parameter gradients are stored, sent and summed. bf16 halves "
                                        "the bytes; only with precision: bf16 or fp8.")
              .one_of({"fp32", "bf16"})
              .of(JobKind::network),
          make_field("command", FieldKind::words,
                     "A program and its arguments, started once per rank in place of a network.")
              .of(JobKind::command),
          make_field("env", FieldKind::variables, "Variables added to each rank's environment."),
          field<&J::working_dir>("working_dir",
                                 "Working directory of the command, relative to the job file; the job file's folder "
                                 "if omitted.")
              .of(JobKind::command),
          weights_field(),
          subsection<&J::dataset>("dataset", dataset_section(), "The training samples.")
              .required()
              .of(JobKind::network),
          make_field("modules", FieldKind::modules, "Reusable blocks of layers that the network inserts by name.")
              .of(JobKind::network),
          make_field("network", FieldKind::layers, "The layers, in order.").required().of(JobKind::network),
          fp8_field(),
          subsection<&J::adapters>("adapters", adapters_section(), "Small trained layers beside frozen ones.")
              .of(JobKind::network),
          loss_field(),
          make_field("metrics", FieldKind::metrics,
                     "Metrics that are computed from each step's predictions and reported with the loss.")
              .of(JobKind::network),
          validation_field(),
          subsection<&J::optimizer>("optimizer", optimizer_section(), "The update rule: a name or a mapping.")
              .of(JobKind::network)
              .shorthand("type"),
          subsection<&J::train>("train", train_section(), "Length of the training, checkpoints and early stopping.")
              .of(JobKind::network),
          subsection<&J::parallel>("parallel", parallel_section(), "How the network is distributed over ranks.")
              .of(JobKind::network),
          subsection<&J::launch>("launch", launch_section(), "Where the ranks run."),
          print_field(),
      }};
  return section;
}

}  // namespace trainctl
