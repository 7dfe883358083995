// Converts choices to their names, and looks up positions of fields.
#include "engine/spec/job_spec.h"

#include <algorithm>

#include "engine/base/entry_types.h"
#include "engine/spec/batch_transforms.h"

namespace trainctl {

// Each of these functions returns "" for a number past the last value: the field table counts the values this way.

std::string_view to_string(ParallelMode mode) {
  switch (mode) {
    case ParallelMode::stand_alone:
      return "stand_alone";
    case ParallelMode::data_parallel:
      return "data_parallel";
    case ParallelMode::semi_auto_parallel:
      return "semi_auto_parallel";
    case ParallelMode::auto_parallel:
      return "auto_parallel";
    case ParallelMode::hybrid_parallel:
      return "hybrid_parallel";
    case ParallelMode::parameter_server:
      return "parameter_server";
  }
  return "";
}

std::string_view to_string(Schedule schedule) {
  switch (schedule) {
    case Schedule::gpipe:
      return "gpipe";
    case Schedule::one_f_one_b:
      return "1f1b";
    case Schedule::interleaved_1f1b:
      return "interleaved_1f1b";
    case Schedule::zero_bubble:
      return "zero_bubble";
  }
  return "";
}

std::string_view to_string(ContextMethod method) {
  switch (method) {
    case ContextMethod::automatic:
      return "auto";
    case ContextMethod::gather:
      return "gather";
    case ContextMethod::ring:
      return "ring";
    case ContextMethod::ulysses:
      return "ulysses";
  }
  return {};
}

std::string_view to_string(ExpertMethod method) {
  switch (method) {
    case ExpertMethod::automatic:
      return "auto";
    case ExpertMethod::gather:
      return "gather";
    case ExpertMethod::all_to_all:
      return "all_to_all";
  }
  return {};
}

std::string_view to_string(StatePlace place) {
  switch (place) {
    case StatePlace::device:
      return "device";
    case StatePlace::host:
      return "host";
  }
  return {};
}

std::string_view to_string(SearchAlgorithm algorithm) {
  switch (algorithm) {
    case SearchAlgorithm::recursive_programming:
      return "recursive_programming";
    case SearchAlgorithm::exhaustive:
      return "exhaustive";
    case SearchAlgorithm::sharding_propagation:
      return "sharding_propagation";
  }
  return "";
}

std::string_view to_string(Effort effort) {
  switch (effort) {
    case Effort::low:
      return "low";
    case Effort::normal:
      return "normal";
    case Effort::high:
      return "high";
  }
  return "";
}

std::string_view to_string(Device device) {
  switch (device) {
    case Device::automatic:
      return "auto";
    case Device::cpu:
      return "cpu";
    case Device::cuda:
      return "cuda";
  }
  return "";
}

std::string_view to_string(Target target) {
  switch (target) {
    case Target::hosts:
      return "hosts";
    case Target::slurm:
      return "slurm";
    case Target::kubernetes:
      return "kubernetes";
    case Target::compose:
      return "compose";
    case Target::pbs:
      return "pbs";
    case Target::lsf:
      return "lsf";
  }
  return "";
}

std::string_view to_string(SpotNotices notices) {
  switch (notices) {
    case SpotNotices::none:
      return "none";
    case SpotNotices::aws:
      return "aws";
    case SpotNotices::gcp:
      return "gcp";
    case SpotNotices::azure:
      return "azure";
  }
  return "";
}

std::string_view to_string(BindMode mode) {
  switch (mode) {
    case BindMode::none:
      return "none";
    case BindMode::core:
      return "core";
    case BindMode::numa:
      return "numa";
  }
  return "";
}

std::string_view to_string(OnNan on_nan) {
  switch (on_nan) {
    case OnNan::stop:
      return "stop";
    case OnNan::warn:
      return "warn";
    case OnNan::skip:
      return "skip";
  }
  return "";
}

std::string_view to_string(StateType type) {
  switch (type) {
    case StateType::fp32:
      return "fp32";
    case StateType::bf16:
      return "bf16";
    case StateType::int8:
      return "int8";
  }
  return "";
}

std::string_view to_string(FrozenType type) {
  switch (type) {
    case FrozenType::same:
      return "same";
    case FrozenType::bf16:
      return "bf16";
    case FrozenType::int8:
      return "int8";
    case FrozenType::nf4:
      return "nf4";
  }
  return "";
}

std::string_view to_string(Fp8Recipe recipe) {
  switch (recipe) {
    case Fp8Recipe::block:
      return "block";
    case Fp8Recipe::tensor:
      return "tensor";
    case Fp8Recipe::delayed:
      return "delayed";
  }
  return "";
}

std::string_view to_string(AmaxAlgo algo) {
  switch (algo) {
    case AmaxAlgo::max:
      return "max";
    case AmaxAlgo::most_recent:
      return "most_recent";
  }
  return "";
}

std::string_view to_string(PrintFormat format) {
  switch (format) {
    case PrintFormat::text:
      return "text";
    case PrintFormat::npy:
      return "npy";
  }
  return "";
}

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::tf32:
      return "tf32";
    case Precision::bf16:
      return "bf16";
    case Precision::fp16:
      return "fp16";
  }
  return "";
}

Attrs OptimizerSpec::settings_of(int group) const {
  Attrs settings = attrs;
  if (group < 0) return settings;
  for (const auto& [name, value] : groups.at(static_cast<size_t>(group)).attrs) settings.set(name, value);
  return settings;
}

double OptimizerSpec::learning_rate_scale(int group) const {
  return group < 0 ? 1.0 : groups.at(static_cast<size_t>(group)).learning_rate_scale;
}

std::vector<std::string> LayerSpec::output_names() const {
  if (outputs.empty()) return {name};
  std::vector<std::string> full;
  for (const std::string& output : outputs) full.push_back(name + "." + output);
  return full;
}

bool WeightsSpec::map_is_file() const {
  return map.find('/') != std::string::npos || map.ends_with(".yaml") || map.ends_with(".yml");
}

bool ValidationSpec::reports(const std::string& metric) const {
  return metrics.empty() || std::find(metrics.begin(), metrics.end(), metric) != metrics.end();
}

bool ValidationSpec::is_due(int64_t steps, int64_t steps_per_epoch) const {
  const int64_t epochs = every_epochs == 0 && every_steps == 0 ? 1 : every_epochs;
  const bool by_epochs = epochs > 0 && steps % steps_per_epoch == 0 && steps / steps_per_epoch % epochs == 0;
  return by_epochs || (every_steps > 0 && steps % every_steps == 0);
}

CheckpointSpec TrainSpec::saving() const {
  if (checkpoint) return *checkpoint;
  CheckpointSpec final_weights;
  final_weights.every = "weights";
  return final_weights;
}

bool is_better(const std::string& metric, double value, double than) {
  return metric == "loss" || metric.starts_with("loss.") ? value < than : value > than;
}

bool DatasetSpec::has_source() const {
  static const std::vector<std::string> types = {"image_folder", "tar",         "csv",     "table",    "npy",
                                                 "npz",          "safetensors", "cifar10", "cifar100", "audio_folder"};
  return std::find(types.begin(), types.end(), type) != types.end();
}

/// Returns the names of the sample fields after noise has been added (engine/train/data/noised_set.h).
static std::vector<std::string> noised_names(const std::vector<std::string>& inner, bool has_classes) {
  std::vector<std::string> names = {inner.front(), "label", "timestep"};
  const bool labelled = std::find(inner.begin(), inner.end(), "label") != inner.end();
  if (labelled && has_classes) names.emplace_back("class");
  for (size_t i = 1; i < inner.size(); ++i)
    if (inner[i] != "label") names.push_back(inner[i]);
  return names;
}

std::vector<std::string> DatasetSpec::field_names() const {
  if (noise_steps > 0) {
    DatasetSpec inner = *this;
    inner.noise_steps = 0;
    return noised_names(inner.field_names(), label_dtype != "f32" && type != "shapes");
  }
  if (type == "image_folder" || type == "cifar10" || type == "cifar100" || (type == "tar" && fields.empty()))
    return {"image", "label"};
  if (type == "audio_folder") return {"audio", "label"};
  if (is_mix()) {
    if (sources.empty()) return {"data", "label"};
    std::vector<std::string> names = sources.front().field_names();
    const auto has_documents_field = [](const DatasetSpec& source) { return source.pack; };
    // Rows of tokens without this field are one document (engine/train/data/mixed_set.h).
    if (!sources.front().pack && std::any_of(sources.begin(), sources.end(), has_documents_field))
      names.emplace_back("documents");
    return names;
  }
  if (type == "clicks") return {"data", "ids", "label"};
  if (type == "preference") return {"data", "label", "targets", "documents"};
  if (has_class_texts() || has_documents()) {
    std::vector<std::string> names = {"data", "label"};
    if (has_class_texts()) names.emplace_back("mask");
    if (pack) names.emplace_back("documents");
    if (has_adapters()) names.push_back(adapter_field);
    return names;
  }
  if (fields.empty()) return {"data", "label"};
  std::vector<std::string> names;
  for (const SampleFieldSpec& field : fields) names.push_back(field.name);
  return names;
}

/// Returns the transforms of a validation, where those of the training draw at random: the middle, never flipped.
static std::vector<TransformSpec> without_chance(std::vector<TransformSpec> transforms) {
  std::erase_if(transforms, [](const TransformSpec& transform) {
    return transform.name == "horizontal_flip" || transform.name == "color_jitter" ||
           transform.name == "random_erasing" || is_of_batch(transform);
  });
  for (TransformSpec& transform : transforms) {
    if (transform.name == "random_crop") {
      transform.name = "center_crop";
      transform.attrs.erase("padding");
    } else if (transform.name == "random_resized_crop") {
      transform.name = "center_resized_crop";
      transform.attrs.erase("scale");
      transform.attrs.erase("ratio");
    }
  }
  return transforms;
}

/// Returns the data sets of the samples that each source holds out for validation; sources without any are left out.
static std::vector<DatasetSpec> held_out_sources(const std::vector<DatasetSpec>& sources, const DatasetSpec& differs) {
  std::vector<DatasetSpec> held_out;
  for (DatasetSpec source : sources) {
    source.shuffle = false;
    source.shuffle_block = 0;
    source.weights.clear();
    source.fim = 0;
    source.max_epochs = 0;
    source.curriculum = "none";
    source.transforms = without_chance(std::move(source.transforms));
    const auto named = std::find_if(differs.source_paths.begin(), differs.source_paths.end(),
                                    [&](const auto& one) { return one.first == source.name; });
    if (named != differs.source_paths.end()) {
      source.paths = named->second;
      source.train_share = source.validation_share = 0;
    } else if (differs.source_paths.empty() && source.validation_share > 0) {
      source.takes_validation_share = true;
    } else {
      continue;
    }
    held_out.push_back(std::move(source));
  }
  return held_out;
}

static bool type_has_named_classes(const std::string& type) {
  return type == "image_folder" || type == "csv" || type == "table" || type == "audio_folder";
}

DatasetSpec JobSpec::validation_set() const {
  DatasetSpec set = dataset;
  set.shuffle = false;
  set.shuffle_block = 0;
  set.drop_last = false;
  set.repeat = 1;
  set.transforms = without_chance(std::move(set.transforms));
  set.fim = 0;
  set.curriculum = "none";
  if (set.is_mix()) {
    set.concatenates = true;
    set.samples = 0;
    if (validation) set.sources = held_out_sources(dataset.sources, validation->dataset);
    return set;
  }
  if (!validation) return set;
  const DatasetSpec& differs = validation->dataset;
  if (differs.paths.empty()) {
    set.takes_validation_share = set.has_shares();
  } else {
    if (type_has_named_classes(set.type)) set.class_paths = set.paths;
    set.paths = differs.paths;
    set.train_share = set.validation_share = 0;
  }
  set.weights.clear();  // each sample counts once
  if (!differs.split.empty()) set.split = differs.split;
  if (!differs.labels) set.labels = false;
  if (differs.samples > 0) set.samples = differs.samples;
  if (set.type == "clicks" || set.type == "shapes")
    set.takes_validation_share = true;  // different samples than those of the training
  return set;
}

std::vector<std::string> JobSpec::metric_names() const {
  std::vector<std::string> names;
  for (const MetricSpec& metric : metrics)
    names.push_back(find_type(metric_types(), metric.type)->reported_as(metric.attrs));
  for (const LossSpec& auxiliary : auxiliary_losses) names.push_back("loss." + auxiliary.name);
  return names;
}

std::vector<const LossSpec*> JobSpec::losses() const {
  std::vector<const LossSpec*> all;
  if (loss) all.push_back(&*loss);
  for (const LossSpec& auxiliary : auxiliary_losses) all.push_back(&auxiliary);
  return all;
}

std::vector<std::string> LossSpec::outputs_read() const {
  return inputs.empty() ? std::vector<std::string>{input} : inputs;
}

std::vector<std::string> JobSpec::reported_metrics() const {
  if (!validation) return {};
  std::vector<std::string> all = metric_names();
  all.insert(all.begin(), "loss");
  std::erase_if(all, [&](const std::string& metric) { return !validation->reports(metric); });
  return all;
}

bool JobSpec::is_override(const std::string& path) const {
  const auto found = positions.find(path);
  return found != positions.end() && found->second.file == kCommandLine.file;
}

SourcePos JobSpec::position(std::string_view path) const {
  std::string at(path);
  while (!at.empty()) {
    if (const auto found = positions.find(at); found != positions.end()) return found->second;
    const size_t cut = at.find_last_of(".[");
    at.resize(cut == std::string::npos ? 0 : cut);
  }
  const auto root = positions.find("");
  return root == positions.end() ? SourcePos{file, 0, 0} : root->second;
}

}  // namespace trainctl
