// A job as the user wrote it: typed, with defaults filled in and a source position for every field.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/base/source_pos.h"
#include "engine/spec/dataset_spec.h"
#include "engine/spec/launch_spec.h"
#include "engine/spec/parallel_spec.h"
#include "engine/spec/precision.h"

namespace trainctl {

enum class OnNan : uint8_t { stop, warn, skip };
/// Storage of frozen weights (graph/packing.h). same: the type that kernels read.
enum class FrozenType : uint8_t { same, bf16, int8, nf4 };
/// Tells how factors of 8 bits are scaled: per block of 128 numbers, or per tensor from its largest magnitude, that of
/// the same step (tensor) or those of earlier steps (delayed).
enum class Fp8Recipe : uint8_t { block, tensor, delayed };
enum class AmaxAlgo : uint8_t { max, most_recent };
/// Storage of the optimizer's states. int8: codes of blocks (engine/ops/pack_states).
enum class StateType : uint8_t { fp32, bf16, int8 };
/// text: each rank writes its local shard to its stdout. npy: the ranks write the whole tensor into one file.
enum class PrintFormat : uint8_t { text, npy };
std::string_view to_string(OnNan on_nan);
std::string_view to_string(FrozenType type);
std::string_view to_string(Fp8Recipe recipe);
std::string_view to_string(AmaxAlgo algo);
std::string_view to_string(StateType type);
std::string_view to_string(PrintFormat format);

/// A layer after modules and repeat are unrolled: names are full ("h.3.ln1") and unique.
struct LayerSpec {
  std::string name;
  std::string type;
  std::vector<std::string> inputs;  ///< names of outputs, or of fields of the samples; defaults to the previous layer
  Attrs attrs;                      ///< the type's own fields, defaults filled in
  std::string path;                 ///< "network[3]" or "modules.block[0]", for positions
  /// Names of several outputs within the layer: "0", "1" or as the job names them. Empty: one, named as the layer.
  std::vector<std::string> outputs = {};

  /// The names by which other layers read its outputs: "h.0.split.q", or the layer's name.
  std::vector<std::string> output_names() const;
  /// For a layer of a module with arguments: "in module 'block', used in line 9 with units: 7". Errors end with it.
  std::string use = {};
};

struct LossSpec {
  std::string type;                 ///< a LossDef's name
  Attrs attrs;                      ///< the type's own fields, defaults filled in
  std::string input;                ///< layer whose output is the prediction; default: the last layer
  std::vector<std::string> inputs;  ///< in place of `input`, for a loss of several outputs: their layers
  std::string reduction = "mean";   ///< mean | sum, over the global batch
  double weight = 1;                ///< factor in the sum of the losses
  // For auxiliary_losses.
  std::string name;             ///< it is reported as "loss.<name>"; default: the type
  std::string label = "label";  ///< the sample field that is the label
  std::string path = "loss";    ///< "auxiliary_losses[1]", for positions

  /// The layers whose outputs it reads.
  std::vector<std::string> outputs_read() const;
};

/// A number that is computed from the predictions in addition to the loss, and reported with it.
struct MetricSpec {
  std::string type;  ///< a MetricDef's name
  Attrs attrs;       ///< the type's own fields, defaults filled in
  std::string path;  ///< "metrics[1]", for positions
};

/// Weights of another tool's files, from which a run starts.
struct WeightsSpec {
  std::string from;          ///< a safetensors file, an index of several, or a model folder; absolute
  std::string map = "auto";  ///< auto, the name of a map, or a file; a file is absolute
  bool partial = false;      ///< tensors that the files lack keep their initial values

  bool map_is_file() const;
};

/// validation.generate: texts that a validation writes with the current weights.
struct GenerateSpec {
  std::string prompts;      ///< a file with a prompt per line, or *.jsonl; made absolute
  int64_t max_tokens = 64;  ///< generated tokens per text
  double temperature = 0;   ///< 0: always the most probable token
  int64_t seed = 0;
};

/// Samples that are evaluated and not trained on.
struct ValidationSpec {
  ValidationSpec() { dataset.split.clear(); }

  DatasetSpec dataset;               ///< only what differs from the job's: paths, split, samples
  int64_t every_epochs = 0;          ///< 0: not by epochs
  int64_t every_steps = 0;           ///< 0: not by steps
  std::vector<std::string> metrics;  ///< loss, and names of the job's metrics; empty: all
  std::optional<GenerateSpec> generate;

  bool reports(const std::string& metric) const;
  /// Returns whether a validation follows this many steps of the run.
  bool is_due(int64_t steps, int64_t steps_per_epoch) const;
};

/// optimizer.learning_rate; the formula of each type is in schedule.h.
struct ScheduleSpec {
  std::string type = "constant";
  double base = 0.01;
  int64_t warmup_steps = 0;            ///< linear from 0 up to base
  int64_t total_steps = 0;             ///< length of a schedule that ends; 0: all steps of the run
  double min = 0.0;                    ///< the rate at the end
  int64_t step_size = 0;               ///< step
  double gamma = 0.1;                  ///< step, exponential, multi_step
  Ints milestones;                     ///< multi_step: steps, ascending
  double power = 1.0;                  ///< polynomial
  int64_t decay_steps = 0;             ///< exponential, wsd
  std::string decay_shape = "linear";  ///< wsd: linear | cosine | sqrt
  int64_t restart_steps = 0;           ///< cosine_restarts: length of the first period
  int64_t restart_factor = 1;          ///< cosine_restarts: each period is this many times as long as the last
  double pct_start = 0.3;              ///< one_cycle
  double div_factor = 25;              ///< one_cycle
  double final_div_factor = 1e4;       ///< one_cycle
  int64_t timescale = 0;               ///< inverse_sqrt; 0: warmup_steps, at least 1
  Ints points;                         ///< piecewise: steps, ascending …
  std::vector<double> rates;           ///< … and the rate at each of them
  // plateau: the rate is multiplied by `factor` (plateau.h)
  std::string metric = "loss";         ///< loss, or a metric that validation reports
  double factor = 0.1;                 ///< factor of the rate …
  int64_t patience = 10;               ///< … after more than this many validations without a better value
  double threshold = 1e-4;             ///< the least improvement that counts
  std::string threshold_mode = "rel";  ///< rel | abs: the threshold is relative to the best value, or absolute
  int64_t cooldown = 0;                ///< validations after a reduction that do not count
  std::vector<ScheduleSpec> segments;  ///< segments: one after the other, each with its own steps
  int64_t steps = 0;                   ///< steps of a segment; 0: the last one, to the end of the run
  std::string path = {};               ///< "optimizer.learning_rate.segments[0]", for positions

  bool is_plateau() const { return type == "plateau"; }
  /// The last step that the schedule describes; 0: it has no end. `run_steps` replaces a total_steps of 0.
  int64_t end(int64_t run_steps) const;
};

/// optimizer.average: an average of the weights of all steps, which validations, `trainctl evaluate` and exports use in
/// place of the weights (average.h).
struct AverageSpec {
  std::string type = "ema";  ///< ema | swa
  double decay = 0.999;      ///< ema
  bool warmup = false;       ///< ema: the decay of update t is at most (1 + t) / (10 + t)
  int64_t start = 0;         ///< updates before the first that counts
  int64_t every = 1;         ///< updates between two that count
};

/// Parameters with settings of their own: those whose name matches a pattern, and no pattern of an earlier group.
struct ParameterGroup {
  std::vector<std::string> patterns;  ///< over names of parameters: "h.0.ln1.weight"
  Attrs attrs;                        ///< the optimizer type's own fields that differ
  double learning_rate_scale = 1;
  std::string path;  ///< "optimizer.groups[0]"
};

/// train.on_spike: a step whose gradient norm exceeds a multiple of the usual one changes nothing.
struct SpikeSpec {
  double norm = 10;              ///< the largest norm, relative to the usual one
  std::string usual = "median";  ///< median | mean of the norms of the last steps
  int64_t window = 64;           ///< how many steps those are
  int64_t least = 16;            ///< steps before the first one that is judged
  std::string then = "skip";     ///< skip | rollback: the state of the last checkpoint returns as well
};

struct OptimizerSpec {
  std::string type = "sgd";  ///< an OptimizerDef's name
  ScheduleSpec learning_rate;
  Attrs attrs;                     ///< the type's own fields; those that are absent have their defaults
  double clip_norm = 0;            ///< by global norm; 0: off
  double clip_value = 0;           ///< by the absolute value of each element; 0: off
  double clip_parameter_norm = 0;  ///< by the norm of each parameter's gradient; 0: off
  std::optional<AverageSpec> average;
  StateType state_type = StateType::fp32;
  /// train.on_nan is skip, or there is on_spike, or precision is fp16: a step whose gradients are not all finite
  /// changes nothing.
  bool skips_not_finite = false;
  bool scales_loss = false;           ///< precision: fp16: gradients are those of the loss times a scale
  std::optional<SpikeSpec> on_spike;  ///< train.on_spike
  std::vector<ParameterGroup> groups;

  /// True if every update reads the norm of all gradients.
  bool needs_norm() const { return clip_norm > 0 || skips_not_finite; }

  /// The settings of a group (Update::group); -1: of all other parameters.
  Attrs settings_of(int group) const;
  double learning_rate_scale(int group) const;
};

/// train.checkpoint: what is saved, when, and where. A run's last step is always saved. With no every_* field the
/// time between two saves follows from what a save costs and how often the run fails.
struct CheckpointSpec {
  int64_t every_steps = 0;     ///< 0: not by steps
  int64_t every_epochs = 0;    ///< 0: not by epochs
  double every_minutes = 0;    ///< 0: not by time
  std::string every = "auto";  ///< weights: only the final weights; none: nothing
  std::string dir;             ///< empty: `checkpoints` in the run's folder
  int64_t keep = 2;            ///< newest checkpoints that are kept
  std::string keep_best;       ///< loss or a metric of validation; empty: only the newest are kept
  bool async = true;           ///< training continues while a save is written
  bool integrated = false;     ///< also one file of whole tensors

  bool is_timed() const { return every_steps != 0 || every_epochs != 0 || every_minutes != 0; }
  bool is_automatic() const { return !is_timed(); }
};

/// train.stop_when: which validation ends the run.
struct StopSpec {
  std::string metric;
  std::optional<double> reaches;
  int64_t patience = 0;  ///< validations without a better value; 0: no limit
};

/// Returns whether `value` of a metric is better than `than`: lower for loss, higher for all other metrics.
bool is_better(const std::string& metric, double value, double than);

struct TrainSpec {
  int64_t epochs = 1;          ///< 0 = derived from `steps`; it is 0 if only `steps` is set
  int64_t steps = 0;           ///< 0: all epochs. If both are set, the one that is reached first ends the run
  int64_t log_every = 1;       ///< steps between loss lines
  int64_t sink_steps = 1;      ///< steps between two reads of the losses
  int64_t histograms = 0;      ///< steps between two histograms of weights and gradients; 0: none
  int64_t fingerprints = 0;    ///< steps between two fingerprints of the state; 0: none
  int64_t audit_every = 0;     ///< steps between two replays of a step on another core or card; 0: none
  OnNan on_nan = OnNan::stop;  ///< reaction to a loss, or with skip to gradients, that are nan or infinite
  std::optional<SpikeSpec> on_spike;
  std::vector<std::string> freeze;            ///< names or globs of parameters that are not trained
  FrozenType frozen_type = FrozenType::same;  ///< storage of weights of dense layers that are not trained
  std::optional<CheckpointSpec> checkpoint;   ///< without it only the final weights are saved
  std::optional<StopSpec> stop_when;

  /// Returns what the run saves, also if the job does not say it.
  CheckpointSpec saving() const;
  /// Returns whether the run saves anything.
  bool saves() const { return saving().every != "none"; }
  /// Returns whether the run saves its whole state, from which another one can resume.
  bool saves_state() const { return saving().every == "auto"; }
};

/// precision: fp8. Which products are computed from 8-bit factors; everything else is as in bf16.
struct Fp8Spec {
  Fp8Recipe recipe = Fp8Recipe::block;
  int64_t amax_history_len = 1024;             ///< delayed: steps whose largest magnitudes are kept
  AmaxAlgo amax_compute_algo = AmaxAlgo::max;  ///< delayed: which of them determines the scale
  int64_t margin = 0;                          ///< delayed: the scale is divided by 2^margin
  std::vector<std::string> layers = {"*"};     ///< names or globs
  int64_t min_weight = 1 << 18;                ///< elements of a weight; products with smaller ones stay in bf16
};

/// precision: fp16. The loss is multiplied by a scale so that small gradients do not become 0, by the rules of
/// torch.amp.GradScaler.
struct Fp16Spec {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< consecutive steps with finite gradients before the scale grows
  double min_scale = 1;            ///< the scale does not fall below
};

/// adapters.lora: low-rank adapters beside dense layers.
struct LoraSpec {
  std::vector<std::string> layers;  ///< names or globs
  int64_t rank = 8;
  double alpha = 8;  ///< the product is multiplied with alpha / rank
  double dropout = 0;
  bool rank_stabilized = false;  ///< alpha / sqrt(rank) instead
  bool dora = false;             ///< trains the norms of the rows of the adapted weights as well
  std::string from;              ///< a folder in PEFT's format whose adapters a run starts from; absolute
};

struct AdaptersSpec {
  std::optional<LoraSpec> lora;
  std::vector<std::string> names;  ///< several adapters of the same form, one for each sample; empty: one for all
  std::string field;               ///< i32 sample field: the place in `names` of a sample's adapter
};

struct PrintSpec {
  std::vector<std::string> tensors;  ///< layer names; empty: nothing is printed
  PrintFormat format = PrintFormat::text;
  int64_t every = 1;  ///< steps from one print to the next, beginning with the first step
  friend bool operator==(const PrintSpec&, const PrintSpec&) = default;
};

/// One of `track`: where the numbers of a run go besides its own files.
struct TrackerSpec {
  std::string type;      ///< tensorboard | mlflow | wandb | command
  std::string to;        ///< mlflow: a folder, made absolute, or a URI; wandb: a project; empty: the tracker's default
  std::string command;   ///< a shell command, which runs in the folder of the job file
  bool required = true;  ///< false: a tracker that cannot start is a warning
  std::string path;      ///< "track[1]", for positions
};

/// Position of a value that an override on the command line gives.
inline const SourcePos kCommandLine = {"command line", 0, 0};

/// A job either describes a network, which trainctl trains, or names a program to start once per rank. A job with a
/// command has no dataset, network, loss, metrics, optimizer, train, parallel and print.
struct JobSpec {
  std::string name = "job";
  uint64_t seed = 1;
  Precision precision = Precision::fp32;
  std::optional<Fp8Spec> fp8;    ///< precision: fp8; `precision` is bf16 then
  std::optional<Fp16Spec> fp16;  ///< precision: fp16
  Precision gradient_precision =
      Precision::fp32;                     ///< fp32 | bf16: type in which gradients are kept and summed over ranks
  std::vector<std::string> command;        ///< program and arguments, as written; empty: a job with a network
  std::map<std::string, std::string> env;  ///< added to the ranks' environment
  std::string working_dir;                 ///< folder of a command; made absolute; the job file's folder if omitted
  /// Shared libraries with layer types: absolute paths, each with "#sha256=" and the digits of its contents
  /// (plugins.h).
  std::vector<std::string> plugins;
  std::optional<WeightsSpec> weights;
  DatasetSpec dataset;
  std::vector<LayerSpec> network;
  std::optional<LossSpec> loss;
  std::vector<LossSpec> auxiliary_losses;  ///< are added to the loss
  std::vector<MetricSpec> metrics;
  std::optional<ValidationSpec> validation;
  OptimizerSpec optimizer;
  TrainSpec train;
  ParallelSpec parallel;
  LaunchSpec launch;
  PrintSpec print;
  std::vector<TrackerSpec> track;
  AdaptersSpec adapters;

  std::string file;                            ///< path as given by the user
  std::string source;                          ///< its text, for excerpts in errors
  std::map<std::string, SourcePos> positions;  ///< "parallel.strategies.layer1" -> its position

  /// The data set of `validation`: fields that it omits are as in `dataset`, and each sample comes once, in order.
  DatasetSpec validation_set() const;
  /// The loss, if there is one, and the auxiliary ones.
  std::vector<const LossSpec*> losses() const;
  /// Names of the numbers that a step reports beside the loss: "accuracy", "top_5", "loss.depth".
  std::vector<std::string> metric_names() const;
  /// Names of the metrics that a validation reports, in its order; empty without one.
  std::vector<std::string> reported_metrics() const;

  bool has_command() const { return !command.empty(); }
  /// Number of servers in the mode parameter_server; else 0. Their ranks follow those of the workers, which
  /// launch.ranks counts.
  int servers() const { return parallel.mode == ParallelMode::parameter_server ? parallel.servers : 0; }
  /// Each worker runs batches of its own, and the servers update with each push. With a staleness of 0 the steps are
  /// the synchronous ones.
  bool is_asynchronous() const { return servers() > 0 && !parallel.sync && parallel.staleness > 0; }
  /// Number of workers and servers.
  int processes() const { return launch.ranks + servers(); }

  /// The position of a field; of the nearest enclosing field if it was left to its default.
  SourcePos position(std::string_view path) const;
  /// Returns whether the command line sets the field.
  bool is_override(const std::string& path) const;
};

}  // namespace trainctl
