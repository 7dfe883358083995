// JobSpec -> YAML, from the same field table that reads it: every default filled in, the network unrolled.
#include <yaml-cpp/emitter.h>
#include <yaml-cpp/node/convert.h>
#include <yaml-cpp/node/node.h>

#include <algorithm>
#include <sstream>

#include "engine/base/error.h"
#include "engine/spec/dataset_fields.h"
#include "engine/spec/expression.h"
#include "engine/spec/fields.h"
#include "engine/spec/parse.h"
#include "engine/spec/trackers.h"
#include "engine/spec/update_fields.h"

namespace trainctl {
namespace {

/// True if every YAML reader reads the unquoted text as the same text: no number, date or flag, and no punctuation.
/// (The emitter itself omits the quotes of `true`, of `a:` as a key, and of a carriage return.)
bool needs_no_quotes(const std::string& text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '/'; };
  const auto inner = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '*'; };
  bool flag = false;
  return !text.empty() && letter(text[0]) && std::all_of(text.begin(), text.end(), inner) &&
         !YAML::convert<bool>::decode(YAML::Node(text), flag);
}

class Writer {
 public:
  explicit Writer(const JobSpec& job) : job_(job) {}

  std::string write() {
    section(job_section(), &job_);
    check(out_.good(), "the resolved job is YAML: " + out_.GetLastError());
    return std::string(out_.c_str(), out_.size()) + "\n";
  }

 private:
  void scalar(const std::string& given) {
    const std::string text = job_.has_command() ? given : escape_expressions(given);
    if (!needs_no_quotes(text)) out_ << YAML::DoubleQuoted;
    out_ << text;
  }

  void key(const std::string& name) {
    out_ << YAML::Key;
    scalar(name);
    out_ << YAML::Value;
  }

  void put(const std::string& item) { scalar(item); }
  void put(bool flag) { out_ << flag; }
  void put(int64_t number) { out_ << number; }
  void put(double number) { out_ << to_string(Value(number)); }
  template <class T>
  void put(const std::vector<T>& items) {
    out_ << YAML::Flow << YAML::BeginSeq;
    for (const T& item : items) put(item);
    out_ << YAML::EndSeq;
  }
  void put(const Value& value) {
    std::visit([this](const auto& v) { put(v); }, value);
  }

  /// Attrs "init.type", "init.std" are a mapping.
  void entries(const Attrs& attrs) {
    std::string open;
    for (const auto& [name, value] : attrs) {
      const size_t dot = name.find('.');
      if (dot == std::string::npos) {
        key(name);
        put(value);
      } else if (const std::string field = name.substr(0, dot); field != open) {
        key(open = field);
        out_ << YAML::Flow << YAML::BeginMap;
        entries(nested_attrs(attrs, field));
        out_ << YAML::EndMap;
      }
    }
  }

  void section(const Section& section, const void* object) {
    const JobKind kind = job_.has_command() ? JobKind::command : JobKind::network;
    std::string type;
    out_ << YAML::BeginMap;
    for (const Field& field : section.fields) {
      if (!belongs_to(field, kind)) continue;
      if (field.name == "type") type = std::get<std::string>(field.get(object));
      if (field.only.empty() || std::find(field.only.begin(), field.only.end(), type) != field.only.end())
        write(field, object);
    }
    out_ << YAML::EndMap;
  }

  /// Writes a field of a section, by its kind.
  void write(const Field& field, const void* object) {
    switch (field.kind) {
      case FieldKind::section:
        return subsection(field, object);
      case FieldKind::words:
        key(field.name);
        return put(job_.command);
      case FieldKind::variables:
        return environment(field);
      case FieldKind::names:
        return names(field, job_.print.tensors);
      case FieldKind::patterns:
        return layer_patterns(field);
      case FieldKind::paths:
      case FieldKind::any_names:
        return names(field, field.list(const_cast<void*>(object)));
      case FieldKind::transforms:
        return transforms(field, set_of(object));
      case FieldKind::sample_fields:
        return sample_fields(field, set_of(object));
      case FieldKind::sources:
        return sources(field, set_of(object));
      case FieldKind::shares:
        return shares_of_sources(field.name, set_of(object).mix);
      case FieldKind::share_changes:
        return share_changes(field, set_of(object));
      case FieldKind::named_paths:
        return named_paths(field, set_of(object));
      case FieldKind::split:
        if (set_of(object).has_shares()) return shares(field, set_of(object));
        if (!set_of(object).has_file_splits()) return;
        break;
      case FieldKind::metrics:
        return metrics(field);
      case FieldKind::losses:
        return auxiliary_losses(field);
      case FieldKind::modules:
      case FieldKind::values:
        return;  // the network is written unrolled, with the values of its expressions
      case FieldKind::groups:
        return groups(field);
      case FieldKind::segments:
        return segments(field, *static_cast<const ScheduleSpec*>(object));
      case FieldKind::trackers:
        return trackers(field);
      case FieldKind::layers:
        return network(field);
      case FieldKind::stage_map:
        return stage_config(field);
      case FieldKind::strategy_map:
        return strategies(field);
      default:
        break;
    }
    write_value(field, object);
  }

  void write_value(const Field& field, const void* object) {
    const std::optional<Value> value = value_of(field, object);
    if (!value) return;
    const auto* text = std::get_if<std::string>(&*value);
    if (text != nullptr && text->empty()) return;
    key(field.name);
    put(*value);
  }

  void subsection(const Field& field, const void* object) {
    // The accessor of an optional section changes nothing unless asked to create it.
    const void* inner = field.object(const_cast<void*>(object), false);
    if (!inner) return;
    key(field.name);
    section(*field.section, inner);
  }

  void names(const Field& field, const std::vector<std::string>& list) {
    if (list.empty()) return;
    key(field.name);
    put(list);
  }

  void groups(const Field& field) {
    if (job_.optimizer.groups.empty()) return;
    key(field.name);
    out_ << YAML::BeginSeq;
    for (const ParameterGroup& group : job_.optimizer.groups) {
      out_ << YAML::Flow << YAML::BeginMap;
      key("parameters");
      put(group.patterns);
      key("learning_rate_scale");
      put(group.learning_rate_scale);
      entries(group.attrs);
      out_ << YAML::EndMap;
    }
    out_ << YAML::EndSeq;
  }

  void trackers(const Field& field) {
    if (job_.track.empty()) return;
    key(field.name);
    out_ << YAML::BeginSeq;
    for (const TrackerSpec& tracker : job_.track) {
      out_ << YAML::Flow;
      section(tracker_section(), &tracker);
    }
    out_ << YAML::EndSeq;
  }

  void environment(const Field& field) {
    if (job_.env.empty()) return;
    key(field.name);
    out_ << YAML::BeginMap;
    for (const auto& [name, value] : job_.env) {
      key(name);
      put(value);
    }
    out_ << YAML::EndMap;
  }

  void layer_patterns(const Field& field) {
    std::vector<std::string> patterns;
    if (field.name == std::string_view("recompute"))
      for (const RecomputeRule& rule : job_.parallel.recompute) patterns.push_back(rule.pattern);
    else
      for (const OffloadRule& rule : job_.parallel.offload.activations) patterns.push_back(rule.pattern);
    names(field, patterns);
  }

  /// Returns the data set whose field is written. Only data sets have fields of the kinds for which this is called.
  static const DatasetSpec& set_of(const void* object) { return *static_cast<const DatasetSpec*>(object); }

  void sources(const Field& field, const DatasetSpec& mix) {
    key(field.name);
    out_ << YAML::BeginMap;
    for (const DatasetSpec& source : mix.sources) {
      key(source.name);
      section(source_section(), &source);
    }
    out_ << YAML::EndMap;
  }

  void shares_of_sources(const std::string& name, const std::vector<SourceShare>& shares) {
    if (shares.empty()) return;
    key(name);
    out_ << YAML::Flow << YAML::BeginMap;
    for (const SourceShare& share : shares) {
      key(share.source);
      put(share.share);
    }
    out_ << YAML::EndMap;
  }

  void share_changes(const Field& field, const DatasetSpec& mix) {
    if (mix.mix_schedule.empty()) return;
    key(field.name);
    out_ << YAML::BeginSeq;
    for (const ShareChange& change : mix.mix_schedule) {
      out_ << YAML::Flow << YAML::BeginMap;
      key("step");
      put(change.step);
      shares_of_sources("mix", change.shares);
      key("ramp");
      put(change.ramp);
      out_ << YAML::EndMap;
    }
    out_ << YAML::EndSeq;
  }

  void segments(const Field& field, const ScheduleSpec& schedule) {
    key(field.name);
    out_ << YAML::BeginSeq;
    for (const ScheduleSpec& segment : schedule.segments) section(segment_section(), &segment);
    out_ << YAML::EndSeq;
  }

  void named_paths(const Field& field, const DatasetSpec& set) {
    if (set.source_paths.empty()) return;
    key(field.name);
    out_ << YAML::BeginMap;
    for (const auto& [source, paths] : set.source_paths) {
      key(source);
      put(paths);
    }
    out_ << YAML::EndMap;
  }

  void sample_fields(const Field& field, const DatasetSpec& set) {
    if (set.fields.empty()) return;
    key(field.name);
    out_ << YAML::BeginMap;
    for (const SampleFieldSpec& one : set.fields) {
      key(one.name);
      put(one.parts);
    }
    out_ << YAML::EndMap;
  }

  void shares(const Field& field, const DatasetSpec& set) {
    key(field.name);
    out_ << YAML::Flow << YAML::BeginMap;
    key("train");
    put(set.train_share);
    key("validation");
    put(set.validation_share);
    out_ << YAML::EndMap;
  }

  void transforms(const Field& field, const DatasetSpec& set) {
    const std::vector<TransformSpec>& all = set.transforms;
    if (all.empty()) return;
    key(field.name);
    if (all.front().field.empty()) return transforms_of(set, "");
    out_ << YAML::BeginMap;
    for (const std::string& name : set.field_names()) {
      if (std::none_of(all.begin(), all.end(), [&](const TransformSpec& t) { return t.field == name; })) continue;
      key(name);
      transforms_of(set, name);
    }
    out_ << YAML::EndMap;
  }

  void transforms_of(const DatasetSpec& set, const std::string& field) {
    out_ << YAML::BeginSeq;
    for (const TransformSpec& transform : set.transforms) {
      if (transform.field != field) continue;
      if (transform.attrs.empty()) {
        scalar(transform.name);
        continue;
      }
      out_ << YAML::Flow << YAML::BeginMap;
      key(transform.name);
      out_ << YAML::Flow << YAML::BeginMap;
      entries(transform.attrs);
      out_ << YAML::EndMap << YAML::EndMap;
    }
    out_ << YAML::EndSeq;
  }

  void metrics(const Field& field) {
    if (job_.metrics.empty()) return;
    key(field.name);
    out_ << YAML::BeginSeq;
    for (const MetricSpec& metric : job_.metrics) {
      out_ << YAML::Flow << YAML::BeginMap;
      key("type");
      put(metric.type);
      entries(metric.attrs);
      out_ << YAML::EndMap;
    }
    out_ << YAML::EndSeq;
  }

  void auxiliary_losses(const Field& field) {
    if (job_.auxiliary_losses.empty()) return;
    key(field.name);
    out_ << YAML::BeginSeq;
    for (const LossSpec& loss : job_.auxiliary_losses) section(auxiliary_loss_section(), &loss);
    out_ << YAML::EndSeq;
  }

  void network(const Field& field) {
    key(field.name);
    out_ << YAML::BeginSeq;
    for (const LayerSpec& layer : job_.network) {
      out_ << YAML::Flow << YAML::BeginMap;
      key("name");
      put(layer.name);
      key("type");
      put(layer.type);
      key("inputs");
      put(layer.inputs);
      if (!layer.outputs.empty()) {
        key("outputs");
        put(layer.outputs);
      }
      entries(layer.attrs);
      out_ << YAML::EndMap;
    }
    out_ << YAML::EndSeq;
  }

  void stage_config(const Field& field) {
    if (job_.parallel.stage_config.empty()) return;
    key(field.name);
    out_ << YAML::BeginMap;
    for (const StageRule& rule : job_.parallel.stage_config) {
      key(rule.pattern);
      put(int64_t{rule.stage});
    }
    out_ << YAML::EndMap;
  }

  void strategies(const Field& field) {
    if (job_.parallel.strategies.empty()) return;
    key(field.name);
    out_ << YAML::BeginMap;
    for (const StrategySpec& rule : job_.parallel.strategies) {
      key(rule.pattern);
      put(rule.cuts);
    }
    out_ << YAML::EndMap;
  }

  const JobSpec& job_;
  YAML::Emitter out_;
};

}  // namespace

std::string to_yaml(const JobSpec& spec) { return Writer(spec).write(); }

FileReaders readers_of(const JobSpec& spec) { return spec.env.empty() ? FileReaders::all : FileReaders::owner; }

JobSpec without_env(JobSpec spec) {
  spec.env.clear();
  return spec;
}

std::string hide_env(const std::string& yaml) {
  std::istringstream lines(yaml);
  std::string text;
  bool in_env = false;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(' ')) in_env = line.starts_with("env:");
    if (!in_env || line == "env:") {
      text += line + "\n";
    } else if (line.starts_with("env:")) {
      text += "env: …\n";
    } else if (line.size() > 2 && line[2] != ' ' &&
               line.find(':') != std::string::npos) {  // other lines continue a value
      text += line.substr(0, line.find(':')) + ": …\n";
    }
  }
  return text;
}

}  // namespace trainctl
