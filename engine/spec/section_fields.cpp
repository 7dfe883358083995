// The field table of the job's sections. Defaults are the initialisers of job_spec.h.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/cluster_fields.h"
#include "engine/spec/dataset_fields.h"
#include "engine/spec/field_makers.h"
#include "engine/spec/fields.h"
#include "engine/spec/job_spec.h"

namespace trainctl {
namespace {

/// The fields that the types of a section define, each once, marked with the types that have it. `attrs` finds
/// their values.
std::vector<Field> fields_of(const std::vector<EntryType>& types, Attrs& (*attrs)(void* object)) {
  std::vector<Field> fields;
  for (const EntryType& type : types) {
    for (const Field& field : type.fields) {
      auto at = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == field.name; });
      if (at == fields.end()) {
        at = fields.insert(at, field);
        at->attrs = attrs;
      }
      check(at->doc == field.doc && at->fallback == field.fallback && kind_text(*at) == kind_text(field),
            "types that share a field give it the same meaning: " + field.name);
      at->only.push_back(type.name);
    }
  }
  for (Field& field : fields) {
    if (field.only.size() == types.size()) field.only.clear();
  }
  return fields;
}

std::vector<Field> operator+(std::vector<Field> a, const std::vector<Field>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// "mae: mean |p - l|; mse: ...".
std::string meanings(const std::vector<EntryType>& types) {
  std::vector<std::string> all;
  for (const EntryType& type : types) all.push_back(type.name + ": " + type.doc);
  return join(all, "; ");
}

const Section& validation_section() {
  using V = ValidationSpec;
  static const Section section{
      "validation",
      "The loss and metrics of samples that are not trained on, with the weights as they are. Always after the last "
      "step.",
      {
          subsection<&V::dataset>("dataset", validation_dataset_section(), "The samples."),
          unless_zero<&V::every_epochs>("every_epochs", "Epochs between two validations; 1 without every_steps.")
              .at_least(1),
          unless_zero<&V::every_steps>("every_steps", "Steps between two validations.").at_least(1),
          list_field<&V::metrics>("metrics", FieldKind::metric_names,
                                  "What is told: loss, and names of the job's `metrics`; all if omitted."),
      }};
  return section;
}

Field validation_field() {
  Field f = make_field("validation", FieldKind::section,
                       "Evaluates samples that are not trained on, during the run and with `trainctl evaluate`.")
                .of(JobKind::network);
  f.section = &validation_section();
  f.object = [](void* enclosing, bool make) -> void* {
    auto& validation = static_cast<JobSpec*>(enclosing)->validation;
    if (make && !validation) validation.emplace();
    return validation ? &*validation : nullptr;
  };
  return f;
}

Field reaches_field() {
  Field f = make_field("reaches", FieldKind::number, "Stop at this value: loss at or below it, others at or above.");
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
      "Ends the run early, after a validation.",
      {
          field<&S::metric>("metric", "loss, or a metric that validation tells.").required(),
          reaches_field(),
          unless_zero<&S::patience>("patience", "Stop after this many validations without a better value.").at_least(1),
      }};
  return section;
}

Field stop_field() {
  Field f = make_field("stop_when", FieldKind::section, "Ends the run early, after a validation.");
  f.section = &stop_section();
  f.object = [](void* enclosing, bool make) -> void* {
    auto& stop = static_cast<TrainSpec*>(enclosing)->stop_when;
    if (make && !stop) stop.emplace();
    return stop ? &*stop : nullptr;
  };
  return f;
}

const Section& loss_section() {
  using L = LossSpec;
  static const Section section{
      "loss", "What is minimised. Without it the job runs forward only. A bare name stands for {type: name}.",
      std::vector<Field>{
          field<&L::type>("type", meanings(loss_types()) + ".").one_of(names_of(loss_types())).required(),
          field<&L::input>("input", "The layer whose output is the prediction; the last layer if omitted."),
      } + fields_of(loss_types(), [](void* loss) -> Attrs& { return static_cast<L*>(loss)->attrs; })};
  return section;
}

const Section& learning_rate_section() {
  using S = ScheduleSpec;
  static const Section section{
      "optimizer.learning_rate",
      "The learning rate over the steps. A bare number stands for {base: number}.",
      {
          field<&S::type>("type", "constant; step: times gamma every step_size steps; cosine: from base down to min.")
              .one_of({"constant", "step", "cosine"}),
          field<&S::base>("base", "The rate after warm-up.").above(0),
          field<&S::warmup_steps>("warmup_steps", "Steps of a linear rise from 0 to base.").at_least(0),
          field<&S::total_steps>("total_steps", "Steps until min is reached; 0: all steps of the run.")
              .for_type({"cosine"})
              .at_least(0),
          field<&S::min>("min", "Final rate of the cosine.").for_type({"cosine"}).at_least(0),
          field<&S::step_size>("step_size", "Steps between two decays.").for_type({"step"}).required().at_least(1),
          field<&S::gamma>("gamma", "Factor of one decay.").for_type({"step"}).above(0),
      }};
  return section;
}

const Section& optimizer_section() {
  using O = OptimizerSpec;
  static const Section section{
      "optimizer", "The update rule; each as in PyTorch.",
      std::vector<Field>{
          field<&O::type>("type", in_words(names_of(optimizer_types()), " or ") + ".")
              .one_of(names_of(optimizer_types())),
          subsection<&O::learning_rate>("learning_rate", learning_rate_section(), "A number or a schedule.")
              .shorthand("base"),
      } + fields_of(optimizer_types(), [](void* optimizer) -> Attrs& { return static_cast<O*>(optimizer)->attrs; }) +
          std::vector<Field>{
              field<&O::clip_norm>("clip_norm", "Largest norm of all gradients together; 0: no clipping.").at_least(0),
              make_field("groups", FieldKind::groups,
                         "Parameters with settings of their own: fields of the optimizer, and learning_rate_scale. A "
                         "parameter belongs to the first group that has a pattern for it."),
          }};
  return section;
}

const Section& checkpoint_section() {
  using C = CheckpointSpec;
  static const Section section{
      "train.checkpoint",
      "What is saved, and when; always after the last step, and when the run is asked to stop. With several `every_*` "
      "each saves.",
      {
          unless_zero<&C::every_steps>("every_steps", "Steps between two saves.").at_least(1),
          unless_zero<&C::every_epochs>("every_epochs", "Epochs between two saves.").at_least(1),
          field<&C::every_minutes>("every_minutes", "Minutes between two saves; 0: not by time.").at_least(0),
          field<&C::every>("every",
                           "auto: without every_*, the time between two saves follows from what one costs and how "
                           "often the run has failed (Young's formula). weights: only the weights, when the run ends. "
                           "none: nothing is saved.")
              .one_of({"auto", "weights", "none"}),
          field<&C::dir>("dir",
                         "Where the checkpoints are, those of one job alone; empty: `checkpoints` in the run's folder."),
          field<&C::keep>("keep", "How many of the newest are kept.").at_least(1),
          field<&C::keep_best>("keep_best", "A metric of validation, or loss: the best checkpoint of it is kept too."),
          field<&C::async>("async", "Training goes on while a save is written; false: it waits until it is on disk."),
          field<&C::integrated>("integrated", "Each also has one file of whole tensors, model.safetensors."),
      }};
  return section;
}

Field checkpoint_field() {
  Field f = make_field("checkpoint", FieldKind::section,
                       "auto saves the whole state, so that `run --resume` can continue the run. Without this field "
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
      "How long to train; at most 2^32 - 1 steps.",
      {
          unless_zero<&T::epochs>("epochs",
                                  "Times through the data set. Without it, a job with `steps` takes as many as it "
                                  "needs. With both, the one that is reached first ends the run.")
              .at_least(1),
          field<&T::steps>("steps", "Stop after this number of steps; 0: after all epochs.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::log_every>("log_every", "Steps between two loss lines.").at_least(1),
          field<&T::sink_steps>(
              "sink_steps",
              "Steps between two reads of the losses. Each step's loss is still reported, but N steps "
              "at a time, so a device that runs steps ahead of its host is asked less often.")
              .at_least(1)
              .at_most(1'000'000),
          field<&T::histograms>(
              "histograms",
              "Steps between two histograms of each weight and its gradient, which TensorBoard draws; 0: none. Such a "
              "step waits until its values are counted.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::on_nan>("on_nan",
                            "If the loss is nan or infinite: stop ends the run with exit code 5, warn says so once and "
                            "goes on."),
          checkpoint_field(),
          stop_field(),
      }};
  return section;
}

const Section& optimizer_shard_section() {
  using S = OptimizerShardSpec;
  static const Section section{
      "parallel.optimizer_shard",
      "Shards what data-parallel ranks would otherwise replicate (hsdp, ZeRO).",
      {
          field<&S::level>("level", "0: nothing, 1: optimizer state, 2: and gradients, 3: and weights.")
              .at_least(0)
              .at_most(3),
          field<&S::min_kb>("min_kb", "Parameters smaller than this many KiB are left whole.")
              .at_least(0)
              .at_most(kMaxSize),
          field<&S::within_host>("within_host",
                                 "Shards are of the ranks of one host: every host holds the whole state, and what its "
                                 "ranks have summed is summed over hosts, a shard at a time."),
      }};
  return section;
}

const Section& search_section() {
  using S = SearchSpec;
  static const Section section{
      "parallel.search",
      "How auto_parallel chooses what the job leaves open.",
      {
          field<&S::algorithm>(
              "algorithm",
              "recursive_programming: everything that is open; sharding_propagation: only cuts, from those "
              "of the given strategies, with the least redistribution; exhaustive: every plan, of small jobs."),
          field<&S::effort>("effort", "How many plans are weighed, and tried: see docs/planning.md."),
      }};
  return section;
}

const Section& parallel_section() {
  using P = ParallelSpec;
  static const Section section{
      "parallel",
      "How the network runs on several ranks. Nothing here changes the numbers.",
      {
          field<&P::mode>("mode", "What decides: see the modes below."),
          field<&P::stages>("stages", "Pipeline stages; divides launch.ranks.").at_least(1).at_most(kMaxRanks),
          field<&P::chunks>("chunks",
                            "Runs of consecutive layers that each stage holds; more than one for interleaved_1f1b.")
              .at_least(1)
              .at_most(kMaxRanks),
          make_field(
              "stage_config", FieldKind::stage_map,
              "The stage of each layer, by name or glob; balanced if omitted. With chunks the virtual stage: 0 to "
              "stages * chunks - 1."),
          field<&P::micro_batches>("micro_batches",
                                   "Number of parts that a batch is split into; divides dataset.batch.")
              .at_least(1)
              .at_most(kMaxMicroBatches),
          field<&P::schedule>("schedule",
                              "Order of the micro-batches' forward and backward passes: see the schedules below."),
          make_field("strategies", FieldKind::strategy_map,
                     "Cuts per dim for each input of a layer, weights included."),
          make_field("recompute", FieldKind::patterns,
                     "Layers, by name or glob, that run again in the backward pass instead of keeping their output."),
          subsection<&P::optimizer_shard>("optimizer_shard", optimizer_shard_section(),
                                          "Cuts optimizer state, gradients, weights.")
              .shorthand("level"),
          field<&P::bucket_bytes>("bucket_bytes",
                                  "Parameters of up to this many bytes of gradients are summed over ranks, updated and "
                                  "gathered together at optimizer_shard levels 0 to 2; 0: 32 MiB.")
              .is(FieldKind::bytes)
              .at_least(0),
          field<&P::full_batch>("full_batch",
                                "Each rank reads the whole batch and takes its slice; false: it reads only its slice."),
          field<&P::head_pieces>(
              "head_pieces",
              "Pieces of rows in which the last product, the loss and their gradients run, so that the "
              "prediction never exists whole; 0: one, or as many as max_memory requires.")
              .at_least(0)
              .at_most(kMaxHeadPieces),
          field<&P::max_memory>("max_memory", "Memory that a rank may use; 0: no limit.")
              .is(FieldKind::bytes)
              .at_least(0),
          subsection<&P::search>("search", search_section(), "For auto_parallel.").shorthand("algorithm"),
          field<&P::servers>("servers", "For parameter_server: processes that hold the weights, beside the workers.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&P::sync>("sync",
                          "For parameter_server: each step takes the gradients of all workers; with tables they "
                          "all_reduce what is no table. false: each worker runs batches of its own, and the servers "
                          "update with each push."),
          field<&P::staleness>("staleness",
                               "For sync: false, and for tables: rounds of batches, one a worker, that a worker may be "
                               "ahead of the oldest batch under way; 0: the synchronous steps.")
              .at_least(0)
              .at_most(kMaxStaleness),
          field<&P::rebalance>(
              "rebalance",
              "For sync: false: a batch goes to whichever worker asks next; false: each worker has its "
              "share of them."),
          list_field<&P::tables>(
              "tables", FieldKind::metric_names,
              "For parameter_server: embeddings, by name or glob of their layers, that are on the servers alone, "
              "split by rows, and are updated with each push."),
      }};
  return section;
}

const Section& elastic_section() {
  static const Section section{
      "launch.elastic",
      "What happens when a host is lost.",
      {
          field<&ElasticSpec::min_ranks>("min_ranks", "With fewer ranks the run ends.").at_least(1),
      }};
  return section;
}

Field elastic_field() {
  Field f = make_field("elastic", FieldKind::section,
                       "Without a lost host the run goes on, from the newest checkpoint and under a new plan; a host "
                       "that is back is used again. See hosts.md.")
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
          field<&L::ranks>("ranks", "Processes; with parameter_server the workers.").at_least(1).at_most(kMaxRanks),
          field<&L::device>("device", "What the kernels run on.").of(JobKind::network),
          field<&L::machine>("machine",
                             "The machine that the plan is made for: h100x8, …, a name that trainctl calibrate has "
                             "given, or its file.")
              .of(JobKind::network),
          field<&L::log_dir>("log_dir", "Holds one folder per run, with one folder per rank."),
          field<&L::comm>("comm", "How ranks communicate: shm is shared memory of one host.")
              .one_of({"auto", "shm", "gloo"})
              .of(JobKind::network),
          field<&L::timeout_seconds>("timeout",
                                     "Limit for start-up, for each collective, and for a rank that shows no progress.")
              .is(FieldKind::seconds)
              .above(0)
              .of(JobKind::network),
          field<&L::grace_seconds>("grace", "Time between the request to stop and the kill.")
              .is(FieldKind::seconds)
              .at_least(0),
          field<&L::max_restarts>("max_restarts", "How often all ranks are restarted after one has failed.")
              .at_least(0),
          field<&L::bind>("bind", "Ties each rank to cores of its own, or to a NUMA node that it shares."),
          field<&L::log_size>("log_size", "Size at which a rank's log file is followed by a new one; 0: never.")
              .is(FieldKind::bytes)
              .at_least(0),
          list_field<&L::hosts>(
              "hosts", FieldKind::metric_names,
              "Hosts that are reached over ssh, as a or me@a; b:4 is one with four ranks. See hosts.md."),
          field<&L::hostfile>("hostfile", "A file of hosts, as mpirun and DeepSpeed read it."),
          field<&L::ssh>("ssh", "The command that reaches a host, with its options."),
          field<&L::interface>("interface", "On which the ranks of CPUs listen for those of other hosts: eth0."),
          field<&L::tls>("tls",
                         "Encrypts what the ranks of CPUs say to those of other hosts; both sides prove that they "
                         "belong to the run.")
              .of(JobKind::network),
          field<&L::reconnect_seconds>("reconnect",
                                       "How long a host may be out of reach; after that its ranks are killed.")
              .is(FieldKind::seconds)
              .at_least(1),
          list_field<&L::copy>("copy", FieldKind::paths,
                               "Files and folders that each of launch.hosts is given before the ranks start, once for "
                               "the same contents; relative to the job file. See hosts.md."),
          elastic_field(),
          field<&L::target>("target",
                            "Where `run` starts the job, and what `render` writes files for; hosts: this one, or "
                            "launch.hosts."),
          subsection<&L::slurm>("slurm", slurm_section(), "What the batch script asks Slurm for. See slurm.md."),
          subsection<&L::kubernetes>("kubernetes", kubernetes_section(),
                                     "What the pods or containers are made of. See kubernetes.md."),
          field<&L::log_files>("log_files", "Log files kept of each stream of a rank; the oldest is deleted.")
              .at_least(1),
      }};
  return section;
}

Field loss_field() {
  Field f = make_field("loss", FieldKind::section, "A name or a mapping.").of(JobKind::network);
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
      "Which layers multiply 8-bit factors. The rest stays in bf16.",
      {
          list_field<&F::layers>("layers", FieldKind::metric_names,
                                 "Layers with a weight, by name or glob; all if omitted. A glob leaves out the layer "
                                 "that the loss reads, the head; name it to have it too."),
          field<&F::min_weight>("min_weight", "Elements of a weight; layers with a smaller one stay in bf16.")
              .at_least(0),
      }};
  return section;
}

/// Only a job with precision: fp8 has it.
Field fp8_field() {
  Field f =
      make_field("fp8", FieldKind::section, "For precision: fp8: which products are in 8 bits.").of(JobKind::network);
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
                "tf32: a GPU may round the operands of matrix products. bf16: weights and activations in "
                "bf16, sums, statistics, gradients of parameters and the optimizer in fp32. fp8: as bf16, and the "
                "products of the layers of `fp8` multiply factors of 8 bits (E4M3, a scale for each 128 elements).")
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

const Section& print_section() {
  using P = PrintSpec;
  static const Section section{
      "print",
      "Layers whose output is shown.",
      {
          make_field("tensors", FieldKind::names, "The layers.").required(),
          field<&P::format>(
              "format",
              "text: each rank writes its part to its stdout. npy: the ranks write the whole tensor, of the "
              "global batch, into one file in the run's folder."),
          field<&P::every>("every", "Steps from one print to the next; the first step is printed.").at_least(1),
      }};
  return section;
}

Field print_field() {
  Field f = make_field("print", FieldKind::section, "Layers whose output is shown.").of(JobKind::network);
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
  // modules before network, and network before the fields that name its layers: fields are read in this order
  static const Section section{
      "",
      "The whole job.",
      {
          make_field("vars", FieldKind::values, "Names for values: `${4*d}` in any value below is computed from them.")
              .of(JobKind::network),
          field<&J::name>("name", "For people."),
          field<&J::seed>("seed", "Determines weights, dropout and shuffling; up to 2^63 - 1.").at_least(0),
          precision_field(),
          field<&J::gradient_precision>("gradient_precision",
                                        "Type in which ranks keep, send and sum parameter gradients. bf16 halves the "
                                        "bytes; only with precision: bf16 or fp8.")
              .one_of({"fp32", "bf16"})
              .of(JobKind::network),
          make_field("command", FieldKind::words,
                     "A program and its arguments, started once per rank instead of a network.")
              .of(JobKind::command),
          make_field("env", FieldKind::variables, "Variables added to each rank's environment."),
          field<&J::working_dir>("working_dir",
                                 "Where the command runs, relative to the job file; its folder if omitted.")
              .of(JobKind::command),
          subsection<&J::dataset>("dataset", dataset_section(), "The samples.").required().of(JobKind::network),
          make_field("modules", FieldKind::modules, "Blocks of layers that the network uses by name.")
              .of(JobKind::network),
          make_field("network", FieldKind::layers, "The layers, in order.").required().of(JobKind::network),
          fp8_field(),
          loss_field(),
          make_field("metrics", FieldKind::metrics,
                     "Numbers of each step's predictions that are reported with the loss.")
              .of(JobKind::network),
          validation_field(),
          subsection<&J::optimizer>("optimizer", optimizer_section(), "The update rule.").of(JobKind::network),
          subsection<&J::train>("train", train_section(), "How long.").of(JobKind::network),
          subsection<&J::parallel>("parallel", parallel_section(), "How it is cut.").of(JobKind::network),
          subsection<&J::launch>("launch", launch_section(), "Where it runs."),
          print_field(),
      }};
  return section;
}

}  // namespace trainctl
