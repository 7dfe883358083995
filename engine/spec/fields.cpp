// The field table as text for messages, docs and the schema.
#include "engine/spec/fields.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"

namespace trainctl {
namespace {

/// Returns a default-constructed struct of the section, from which defaults are read.
const void* default_object(const Section* section) {
  static const JobSpec job;
  static const CheckpointSpec checkpoint;
  static const AverageSpec average;
  static const StopSpec stop;
  static const SpikeSpec spike;
  static const ValidationSpec validation;
  static const Fp8Spec fp8;
  static const Fp16Spec fp16;
  static const LoraSpec lora;
  static const GenerateSpec generate;
  static const LossSpec loss;
  static const TrackerSpec tracker;
  if (section == nullptr || section->name.empty()) return &job;
  if (section->name == "dataset" || section->name == "a source") return &job.dataset;
  if (section->name == "optimizer") return &job.optimizer;
  if (section->name == "optimizer.learning_rate") return &job.optimizer.learning_rate;
  if (section->name == "a segment") return &job.optimizer.learning_rate;
  if (section->name == "train.on_spike") return &spike;
  if (section->name == "optimizer.average") return &average;
  if (section->name == "train") return &job.train;
  if (section->name == "train.checkpoint") return &checkpoint;
  if (section->name == "train.stop_when") return &stop;
  if (section->name == "validation") return &validation;
  if (section->name == "validation.dataset") return &validation.dataset;
  if (section->name == "validation.generate") return &generate;
  if (section->name == "parallel") return &job.parallel;
  if (section->name == "parallel.optimizer_shard") return &job.parallel.optimizer_shard;
  if (section->name == "parallel.outer") return &job.parallel.outer;
  if (section->name == "launch") return &job.launch;
  if (section->name == "launch.slurm") return &job.launch.slurm;
  if (section->name == "launch.pbs") return &job.launch.pbs;
  if (section->name == "launch.lsf") return &job.launch.lsf;
  if (section->name == "launch.kubernetes") return &job.launch.kubernetes;
  if (section->name == "loss" || section->name == "auxiliary_losses") return &loss;
  if (section->name == "print") return &job.print;
  if (section->name == "track") return &tracker;
  if (section->name == "fp8") return &fp8;
  if (section->name == "fp16") return &fp16;
  if (section->name == "adapters") return &job.adapters;
  if (section->name == "adapters.lora") return &lora;
  return nullptr;
}

/// Returns the description of a kind's values; "" for kinds whose description depends on the field.
std::string_view fixed_kind_name(FieldKind kind) {
  using enum FieldKind;
  static constexpr std::pair<FieldKind, std::string_view> kNames[] = {
      {flag, "true or false"},
      {integer, "integer"},
      {number, "number"},
      {text, "text"},
      {ints, "list of integers"},
      {numbers, "list of numbers"},
      {int_lists, "list of lists of integers"},
      {bytes, "bytes (25GB, 512MiB)"},
      {seconds, "time (10s, 2m)"},
      {words, "list of words"},
      {variables, "mapping of name to text"},
      {initial, "initial values: name or mapping"},
      {names, "list of layer names"},
      {patterns, "list of names or globs"},
      {paths, "path or list of paths"},
      {transforms, "list of transforms, or mapping of field to such a list"},
      {sample_fields, "mapping of field to text or list of texts"},
      {metrics, "list of metrics"},
      {losses, "list of mappings"},
      {any_names, "list of names"},
      {modules, "mapping of name to list of layers, or to a mapping of args, inputs and layers"},
      {layers, "list of layers"},
      {values, "mapping of name to number, text, true or false"},
      {groups, "list of mappings"},
      {stage_map, "mapping of name or glob to stage"},
      {strategy_map, "mapping of name or glob to cuts"},
      {sources, "mapping of name to a data set"},
      {shares, "mapping of source to number"},
      {share_changes, "list of mappings with step, mix and ramp"},
      {named_paths, "mapping of source to path or list of paths"},
      {segments, "list of mappings with steps and the fields of a schedule"},
      {trackers, "list of trackers"},
  };
  const auto found = std::ranges::find(kNames, kind, &std::pair<FieldKind, std::string_view>::first);
  check(found != std::end(kNames), "a kind of field without a name");
  return found->second;
}

std::string kind_name(const Field& field) {
  switch (field.kind) {
    case FieldKind::choice:
      return join(field.choices, " | ");
    case FieldKind::per_dim:
      return "integer or list of integers" + (field.choices.empty() ? "" : " | " + join(field.choices, " | "));
    case FieldKind::section:
      return field.stands_for.empty() ? "mapping" : field.stands_for + " or mapping";
    case FieldKind::split:
      return join(field.choices, ", ") + ", or mapping with the numbers train and validation";
    default:
      return std::string(fixed_kind_name(field.kind));
  }
}

void find_fields(const Section& section, const std::string& prefix, std::string_view name,
                 std::vector<FieldAt>& found) {
  for (const Field& field : section.fields) {
    const std::string path = prefix + field.name;
    if (field.name == name || path == name) found.push_back({path, &field});
    if (field.section != nullptr) find_fields(*field.section, path + ".", name, found);
  }
}

bool finite(double v) { return v > -1e300 && v < 1e300; }

std::string limit_text(double v) {
  return v == static_cast<double>(static_cast<int64_t>(v)) ? std::to_string(static_cast<int64_t>(v))
                                                           : to_string(Value(v));
}

}  // namespace

std::vector<FieldAt> fields_called(std::string_view name) {
  std::vector<FieldAt> found;
  find_fields(job_section(), "", name, found);
  return found;
}

std::string kind_text(const Field& field) {
  std::string text = kind_name(field);
  if (field.length) text += " (" + std::to_string(field.length) + ")";
  if (finite(field.min)) text += (field.min_open ? ", above " : ", at least ") + limit_text(field.min);
  // The limit of a C++ int would not help a reader.
  if (finite(field.max) && field.max < 2147483647.0)
    text += (field.max_open ? ", below " : ", at most ") + limit_text(field.max);
  return text;
}

std::string in_words(std::vector<std::string> words, const std::string& last_separator) {
  if (words.size() < 2) return join(words);
  const std::string last = words.back();
  words.pop_back();
  return join(words) + last_separator + last;
}

std::string scope_text(const Field& field) {
  if (!field.only.empty()) return "For " + join(field.only, ", ") + ".";
  if (field.job == JobKind::any) return "";
  return field.job == JobKind::command ? "For jobs with a command." : "For jobs with a network.";
}

std::string default_text(const Field& field, const Section* section) {
  if (field.is_required) return "";
  if (field.fallback) return to_string(*field.fallback);
  const void* object = section && field.get ? default_object(section) : nullptr;
  return object ? to_string(field.get(object)) : "";
}

std::optional<Value> value_of(const Field& field, const void* object) {
  if (field.get) return field.get(object);
  // The accessor itself changes nothing.
  const Value* value = field.attrs(const_cast<void*>(object)).find(field.name);
  return value ? *value : field.fallback;
}

void set_value(const Field& field, void* object, Value value) {
  if (field.set)
    field.set(object, value);
  else
    field.attrs(object).set(field.name, std::move(value));
}

}  // namespace trainctl
