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
#include "engine/spec/launch_spec.h"

namespace trainctl {

enum class ParallelMode : uint8_t {
  stand_alone,
  data_parallel,
  semi_auto_parallel,
  auto_parallel,
  hybrid_parallel,
  parameter_server
};
enum class Schedule : uint8_t { gpipe, one_f_one_b, interleaved_1f1b, zero_bubble };
enum class Precision : uint8_t { fp32, tf32, bf16, fp16 };
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
std::string_view to_string(ParallelMode mode);
std::string_view to_string(Schedule schedule);  ///< "gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"
std::string_view to_string(Precision precision);
std::string_view to_string(OnNan on_nan);
std::string_view to_string(FrozenType type);
std::string_view to_string(Fp8Recipe recipe);
std::string_view to_string(AmaxAlgo algo);
std::string_view to_string(StateType type);
std::string_view to_string(PrintFormat format);

/// One step of dataset.transforms, e.g. {name: "rescale", attrs: {scale: …, shift: …}}.
struct TransformSpec {
  std::string name;
  Attrs attrs;
  std::string path;        ///< "dataset.transforms[1]", or "dataset.transforms.mask[1]"
  std::string field = {};  ///< name of a sample field; empty: the first one that is not `label`
};

/// One of dataset.fields: a field of the samples, and the parts of the files that it is read from.
struct SampleFieldSpec {
  std::string name;
  /// csv: columns, by name or number. tar: extensions. npy: a file. npz, safetensors: an array.
  std::vector<std::string> parts;
};

/// The share of a source in a mixture, relative to the others.
struct SourceShare {
  std::string source;
  double share = 0;
};

/// From `step` on a mixture has other shares. They change linearly over `ramp` steps; 0: at once.
struct ShareChange {
  int64_t step = 0, ramp = 0;
  std::vector<SourceShare> shares;
  std::string path;  ///< "dataset.mix_schedule[0]"
};

struct DatasetSpec {
  std::string type;  ///< mnist | image_folder | tar | csv | table | npy | npz | safetensors | tokens | text | …
  /// Made absolute. mnist, cifar10, cifar100: one folder; all others: folders, files and globs, in order.
  std::vector<std::string> paths;
  std::string split = "train";  ///< mnist, cifar10, cifar100: train | test
  /// Other types: fractions of the samples, chosen by a hash, for training and for validation. 0: no split.
  double train_share = 0, validation_share = 0;
  bool takes_validation_share = false;
  std::vector<std::string> class_paths;  ///< only in a validation: the training set, whose class numbers apply
  std::vector<double> weights;           ///< weight of each path, if data sets are mixed
  std::vector<SampleFieldSpec> fields;
  int channels = 3;                ///< images: 1 | 3
  std::string label_set = "fine";  ///< cifar100: fine | coarse
  std::string delimiter = ",";     ///< csv
  bool header = true;              ///< csv: the first line has the names of the columns
  std::string on_error = "stop";   ///< stop | skip: another sample takes the place of a broken one
  std::string cache = "auto";      ///< auto | memory | disk | none
  std::vector<TransformSpec> transforms;
  std::string label_dtype = "i32";  ///< f32 | i32
  bool labels = true;               ///< false: the files have no labels, and each label is 0
  int64_t batch = 32;               ///< global
  bool shuffle = true;
  int64_t shuffle_block =
      0;  ///< samples per block; neighbours stay close together (engine/train/data/block_order.h); 0: no blocks
  bool drop_last = true;
  int64_t repeat = 1;      ///< passes over the set per epoch
  int workers = 0;         ///< threads of a rank that read; 0: chosen while it runs
  int prefetch = 0;        ///< batches read ahead; 0: chosen while it runs
  bool autotune = true;    ///< false: workers and prefetch keep their values; 1 in place of 0
  int64_t max_memory = 0;  ///< bytes of a rank's batches ahead; 0: a sixteenth of the host's memory
  // tokens and text
  int64_t length = 0;                  ///< tokens per sample
  int64_t stride = 0;                  ///< tokens from the start of a sample to the next one's; 0: length
  std::string token_dtype = "uint16";  ///< uint16 | int32: type in files without a header
  // chat, and text with a tokenizer: rows of documents
  std::string tokenizer;                ///< folder or file, made absolute
  std::string json_field;               ///< field of JSON Lines; empty: messages (chat) or text
  std::string label_field;              ///< text: field of JSON Lines with the class; empty: the labels are tokens
  std::string train_on = "all";         ///< all | assistant: tokens whose labels count
  bool pack = false;                    ///< several documents share a row
  std::string packing = "best_fit";     ///< best_fit | in_order | concatenate: how documents share rows
  std::string filter;                   ///< an expression over a document; documents for which it is false are left out
  bool deduplicate = false;             ///< only the first of documents with the same tokens is used
  double fim = 0;                       ///< fraction of the documents that are rearranged for fill-in-the-middle
  double fim_spm = 0.5;                 ///< fraction of those whose suffix comes before their prefix
  std::vector<std::string> fim_tokens;  ///< prefix, suffix and middle token; empty: those that the tokenizer has
  std::string curriculum = "none";      ///< none | length: short samples come first …
  int64_t curriculum_epochs = 1;        ///< … in this many passes over the set
  double curriculum_noise = 0.05;       ///< how far a sample moves from its place by length, as a fraction of the set
  // mix: several sets, each declared in full (engine/planning/mixture.h)
  std::vector<DatasetSpec> sources;
  std::string name;                       ///< a source: its key in dataset.sources
  double max_epochs = 0;                  ///< a source: passes over it in the whole run; 0: no limit
  std::vector<SourceShare> mix;           ///< empty: by the sizes of the sources
  std::string mix_by = "samples";         ///< samples | tokens: the unit of the shares
  double temperature = 1;                 ///< shares to the power of 1 / temperature
  std::vector<ShareChange> mix_schedule;  ///< ascending steps
  std::vector<std::pair<std::string, std::vector<std::string>>> source_paths;  ///< only in a validation: by source
  bool concatenates = false;  ///< only in a validation: each sample of each source comes once
  int64_t store_cache = 0;  ///< bytes on the local disk for blocks of object stores; 0: chosen by the size of the disk
  // audio_folder
  std::string audio = "samples";    ///< samples | mel: what a sample has of a clip
  int64_t sample_rate = 16'000;     ///< required of every file; other rates are errors
  int64_t mel_bins = 80;            ///< mel: values per frame
  int64_t window = 400, hop = 160;  ///< mel: samples of a frame, and from one frame to the next
  // random and constant sets; shapes are per sample
  Ints shape;
  std::string dtype = "f32";  ///< type of data: f32 | i32
  Ints label_shape;           ///< [] = one number per sample
  int64_t samples = 0;        ///< 0: one batch per epoch
  int64_t classes = 0;        ///< random: integers (i32 data, i32 labels) are in [0, classes)
  double value = 1.0;         ///< constant: data
  double label_value = 0.0;   ///< constant: label
  // clicks
  int64_t ids = 8;     ///< ids per sample
  int64_t vocab = 0;   ///< ids are in [0, vocab)
  double zipf = 1.05;  ///< the r-th most frequent id comes 1 / r^zipf as often as the first
  // noise for diffusion models (engine/train/data/noised_set.h)
  int64_t noise_steps = 0;                        ///< 0: no noise is added
  std::string noise_schedule = "linear";          ///< linear | cosine
  std::vector<double> noise_betas{0.0001, 0.02};  ///< linear: variance of the noise of the first and the last step
  // chat and text whose rows use one of several adapters: adapters.field and adapters.names of the job
  std::string adapter_field;               ///< field of a document with the name or number of its adapter
  std::vector<std::string> adapter_names;  ///< empty: no field has adapters

  /// Names of the fields of the samples, in their order; layers may name them as inputs.
  std::vector<std::string> field_names() const;
  bool is_mix() const { return type == "mix"; }
  /// True if batches are drawn from several sources by their shares.
  bool has_mixture() const { return is_mix() && !concatenates; }
  /// True if its samples are rows of documents (engine/train/data/document_set.h).
  bool has_documents() const { return type == "chat" || (type == "text" && !tokenizer.empty() && !has_class_texts()); }
  /// True if its samples are texts with a class (engine/train/data/class_text_set.h).
  bool has_class_texts() const { return type == "text" && !label_field.empty(); }
  /// True if its samples have a field with the number of their adapter, which comes last.
  bool has_adapters() const { return !adapter_names.empty(); }
  /// True if its samples are tokens and the tokens that follow them; a mixture has samples as its first source.
  bool has_tokens() const {
    if (is_mix()) return !sources.empty() && sources.front().has_tokens();
    return type == "tokens" || (type == "text" && !has_class_texts()) || type == "chat";
  }
  /// True if it is read through a Source (engine/train/data/source.h).
  bool has_source() const;
  /// True if its files say which samples are for training and which for tests.
  bool has_file_splits() const { return type == "mnist" || type == "cifar10" || type == "cifar100"; }
  bool has_shares() const { return train_share > 0 || validation_share > 0; }
};

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

/// parallel.strategies: a pattern and the cuts per dim of each input of the layers it matches.
struct StrategySpec {
  std::string pattern;
  std::vector<Ints> cuts;
  std::string path;
  std::string reason = {};  ///< reason that a search gives; empty: the user wrote it
};

struct StageRule {
  std::string pattern;
  int stage = 0;  ///< a virtual stage: chunk * stages + stage
  std::string path;
};

struct RecomputeRule {
  std::string pattern;
  std::string path;
};

struct OptimizerShardSpec {
  int level = 0;
  int64_t min_kb = 64;
  bool within_host = false;  ///< shards over the ranks of one host; each host stores the whole state
};

enum class SearchAlgorithm : uint8_t { recursive_programming, sharding_propagation, exhaustive };
enum class Effort : uint8_t { low, normal, high };
std::string_view to_string(SearchAlgorithm algorithm);
std::string_view to_string(Effort effort);

/// parallel.context_method: how ranks that share the rows of a sequence exchange keys and values.
enum class ContextMethod : uint8_t { automatic, gather, ring, ulysses };
std::string_view to_string(ContextMethod method);

/// parallel.expert_method: how tokens reach the ranks of their experts.
enum class ExpertMethod : uint8_t { automatic, gather, all_to_all };
std::string_view to_string(ExpertMethod method);

/// The memory that holds a part of a rank's state.
enum class StatePlace : uint8_t { device, host };
std::string_view to_string(StatePlace place);

struct OffloadRule {
  std::string pattern;
  std::string path;
};

/// parallel.offload: state and activations that ranks on GPUs keep in the memory of their host.
struct OffloadSpec {
  StatePlace optimizer = StatePlace::device;
  std::vector<OffloadRule> activations;  ///< layers whose tensors wait there for the backward pass
};

/// parallel.outer: the optimizer that updates the weights once every local_steps, from the mean difference of the
/// replicas' weights.
struct OuterSpec {
  double learning_rate = 0.9;
  double momentum = 0.5;
  bool nesterov = true;
  double round_growth = 0.25;  ///< a round has at most this share of the steps before it; 0: all have local_steps
  double local_rate = 0;       ///< factor on the job's learning rate in local steps; 0: chosen (local_rate_of)
  Precision precision = Precision::bf16;  ///< fp32 or bf16: of the differences that replicas exchange
};

/// parallel.search: how auto_parallel chooses what the job leaves open.
struct SearchSpec {
  SearchAlgorithm algorithm = SearchAlgorithm::recursive_programming;
  Effort effort = Effort::normal;
};

struct ParallelSpec {
  ParallelMode mode = ParallelMode::stand_alone;
  int stages = 1;
  int chunks = 1;  ///< chunks of layers per stage
  std::vector<StageRule> stage_config;
  int data = 0;     ///< ranks of a stage that share the batch; 0: those that tensor and context leave
  int tensor = 1;   ///< ranks that share the heads and hidden features
  int context = 1;  ///< ranks that share the rows of a sequence
  ContextMethod context_method = ContextMethod::automatic;
  int micro_batches = 1;
  /// data_parallel: micro-batches of each rank in a step, whose sum is micro_batches; empty: ranks share each
  /// micro-batch evenly.
  Ints rank_micro_batches;
  Schedule schedule = Schedule::one_f_one_b;
  std::vector<StrategySpec> strategies;
  int expert = 1;  ///< ranks over which the layers with experts and without a strategy share them
  ExpertMethod expert_method = ExpertMethod::automatic;
  std::vector<RecomputeRule> recompute;
  OptimizerShardSpec optimizer_shard;
  OffloadSpec offload;
  int64_t bucket_bytes = 0;  ///< bytes of gradients that one collective sums; 0: chosen
  bool full_batch = false;
  int head_pieces = 0;     ///< 0: as many as max_memory requires
  int64_t max_memory = 0;  ///< bytes per rank; 0: no limit
  SearchSpec search;       ///< auto_parallel
  int servers = 1;         ///< parameter_server, as are the fields below
  bool sync = true;
  int staleness = 4;       ///< asynchronous: rounds of batches that a worker may be ahead of the oldest unfinished one
  bool rebalance = false;  ///< asynchronous: a batch goes to whichever worker asks next
  std::vector<std::string> tables;  ///< names or globs of layers
  int64_t local_steps = 0;          ///< steps between two synchronizations of replicas; 0: ranks share every step
  int replicas = 0;                 ///< with local_steps: groups of ranks with weights of their own; 0: one per host
  OuterSpec outer;

  /// The job states sizes, from which the cuts of layers without a strategy follow.
  bool has_sizes() const { return data > 0 || tensor > 1 || context > 1; }
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
