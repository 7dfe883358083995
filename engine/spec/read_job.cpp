// YAML tree -> JobSpec, section by section, following the field table.
#include "engine/spec/read_job.h"

#include <algorithm>
#include <set>

#include "engine/base/name_pattern.h"
#include "engine/base/text.h"
#include "engine/spec/adapters.h"
#include "engine/spec/added_layers.h"
#include "engine/spec/dataset_fields.h"
#include "engine/spec/fields.h"
#include "engine/spec/foreign_names.h"
#include "engine/spec/network.h"
#include "engine/spec/read_command.h"
#include "engine/spec/read_dataset.h"
#include "engine/spec/read_fields.h"
#include "engine/spec/read_metrics.h"
#include "engine/spec/read_parameter_groups.h"
#include "engine/spec/read_value.h"
#include "engine/spec/trackers.h"
#include "engine/spec/update_fields.h"

namespace trainctl {
namespace {

/// For a field in the wrong section: "did you mean launch.ranks?"; for a field of another tool how to write it here. ""
/// if no section, or more than one, has it.
std::string where_it_belongs(const std::string& key) {
  const std::vector<FieldAt> found = fields_called(key);
  if (found.size() == 1) return "did you mean '" + found.front().path + "'?";
  return foreign_hint(NameKind::field, key);
}

class JobReader {
 public:
  JobReader(JobSpec& job, JobKind kind, const Names& vars, Expander& expander, Problems& problems)
      : job_(job), kind_(kind), vars_(vars), expander_(expander), problems_(problems) {}

  void section(const YamlNode& node, const Section& section, void* object, const std::string& path) {
    if (!node.is_map() && !node.is_null()) {
      std::vector<std::string> fields = names_of(section.fields);
      fields.resize(std::min<size_t>(fields.size(), 6));
      problems_.add(node.pos, path, "must be a mapping, not " + describe(node),
                    "write {" + fields.front() + ": …}; fields: " + join(fields));
      return;
    }
    const std::string what = section.name.empty() ? "a job" : section.name;
    refuse_unknown(node, section, path, what);
    for (const Field& field : section.fields) {
      const auto entry = std::find_if(node.entries.begin(), node.entries.end(),
                                      [&](const YamlNode::Entry& e) { return e.key == field.name; });
      const bool given = entry != node.entries.end() && !entry->value.is_null();
      const std::string where = at_key(path, field.name);
      if (!belongs_to(field, kind_)) {
        if (given) refuse_kind(field, section, entry->key_pos, where);
      } else if (!belongs(field, section, object, path)) {
        if (given) refuse_field(field, section, object, entry->key_pos, where);
      } else if (given) {
        read(entry->value, field, object, where);
      } else if (field.is_required && (field.only.empty() || !problems_.touch(at_key(path, "type")))) {
        problems_.add(entry != node.entries.end() ? entry->value.pos : node.pos, where,
                      what + " needs '" + field.name + "'",
                      field.name + ": " + kind_text(field) +
                          (field.kind == FieldKind::layers ? ", or use command: [python3, train.py] instead" : ""));
      }
    }
  }

  void finish() {
    add_metrics_of_validation(job_, problems_);
    adapters_of_documents();
    for (size_t i = 0; job_.fp8 && i < job_.fp8->layers.size(); ++i) {
      const std::string path = at_index("fp8.layers", i);
      demand_match(job_.fp8->layers[i], job_.position(path), path);
    }
    fill_in(job_.optimizer.type, optimizer_types(), job_.optimizer.attrs);
    if (job_.loss) outputs_of(*job_.loss);
    for (LossSpec& loss : job_.auxiliary_losses) outputs_of(loss);
    if (!job_.launch.machines.empty()) job_.launch.machine = job_.launch.machines.front();
  }

 private:
  /// Finds the layers whose outputs a loss reads.
  void outputs_of(LossSpec& loss) {
    fill_in(loss.type, loss_types(), loss.attrs);
    const EntryType* type = find_type(loss_types(), loss.type);
    const size_t wanted = type == nullptr ? loss.inputs.size() : static_cast<size_t>(type->max_inputs);
    if (wanted > 1 || !loss.inputs.empty()) {
      const std::string path = at_key(loss.path, "inputs");
      if (loss.inputs.size() != wanted && type != nullptr)
        problems_.add(
            job_.position(path), path,
            loss.type + " reads " + std::to_string(wanted) + " outputs, not " + std::to_string(loss.inputs.size()),
            wanted > 1 ? "inputs: [a, b" + std::string(wanted > 2 ? ", c]" : "]") : "use input: LAYER");
      for (size_t i = 0; i < loss.inputs.size(); ++i) output_named(loss.inputs[i], at_index(path, i));
      if (!loss.inputs.empty()) loss.input = loss.inputs.front();
    } else if (loss.input.empty()) {
      const auto last = network_.outputs.find(network_.last);
      if (last != network_.outputs.end()) loss.input = last->second;
      refuse_several(network_.last, job_.position(loss.path), loss.path);
    } else {
      output_named(loss.input, at_key(loss.path, "input"));
    }
  }

  /// Replaces the name of a layer, as the job writes it, by that of its output.
  void output_named(std::string& name, const std::string& path) {
    if (const auto known = network_.outputs.find(name); known != network_.outputs.end())
      name = known->second;
    else if (!refuse_several(name, job_.position(path), path) && network_.complete)
      problems_.add(job_.position(path), path, "there is no layer '" + name + "'",
                    did_you_mean(name, network_.print_names));
  }

  /// Documents have the name or number of their adapter in a field, which becomes one of the samples.
  void adapters_of_documents() {
    const auto choose = [&](DatasetSpec& set) {
      if (!set.has_documents() && !set.has_class_texts()) return;
      set.adapter_field = job_.adapters.field;
      set.adapter_names = job_.adapters.names;
    };
    if (job_.adapters.field.empty()) return;
    choose(job_.dataset);
    for (DatasetSpec& source : job_.dataset.sources) choose(source);
  }

  /// Reports an error if the name of a layer with several outputs is used where one output is needed.
  bool refuse_several(const std::string& name, const SourcePos& pos, const std::string& path) {
    const auto several = network_.several.find(name);
    if (several == network_.several.end()) return false;
    problems_.add(pos, path, "'" + name + "' has " + std::to_string(several->second.size()) + " outputs",
                  "name one: " + join(several->second));
    return true;
  }

  /// Suggests only fields that this job and this type of the section may have.
  void refuse_unknown(const YamlNode& node, const Section& section, const std::string& path, const std::string& what) {
    // If there is no network, the misspelt key may be `command`.
    const bool any_kind = section.name.empty() && kind_ == JobKind::network && node.find("network") == nullptr;
    const std::string type = type_in(node, section);
    std::vector<std::string> all, legal;
    for (const Field& field : section.fields) {
      all.push_back(field.name);
      const bool of_type = type.empty() || field.only.empty() ||
                           std::find(field.only.begin(), field.only.end(), type) != field.only.end();
      if (of_type && (any_kind || belongs_to(field, kind_))) legal.push_back(field.name);
    }
    YamlNode unknown;
    for (const YamlNode::Entry& entry : node.entries)
      if (std::find(all.begin(), all.end(), entry.key) == all.end())
        unknown.entries.push_back({entry.key, entry.key_pos, {}});
    refuse_unknown_keys(unknown, legal, what, path, problems_, [&](const std::string& key) {
      const std::string hint = where_it_belongs(key);
      return hint.empty() ? inside(section, key) : hint;
    });
  }

  /// For a field of one section within this one: "did you mean 'validation.dataset.path'?". "" if there is none.
  static std::string inside(const Section& section, const std::string& key) {
    std::string found;
    for (const Field& field : section.fields) {
      if (section.name.empty() || field.section == nullptr) continue;
      for (const Field& inner : field.section->fields) {
        if (inner.name != key) continue;
        if (!found.empty()) return "";
        found = section.name + "." + field.name + "." + key;
      }
    }
    return found.empty() ? "" : "did you mean '" + found + "'?";
  }

  /// The `type` that a section gives, or its default; "" if that is wrong itself, or if the section has no types.
  static std::string type_in(const YamlNode& node, const Section& section) {
    if (section.fields.empty() || section.fields.front().name != "type") return "";
    const Field& field = section.fields.front();
    const YamlNode* given = node.find("type");
    if (given == nullptr || given->is_null()) return default_text(field, &section);
    const bool is_known = std::find(field.choices.begin(), field.choices.end(), given->text) != field.choices.end();
    return is_known ? given->text : "";
  }

  /// Fills in the defaults of the type's own fields.
  static void fill_in(const std::string& name, const std::vector<EntryType>& types, Attrs& attrs) {
    if (const EntryType* type = find_type(types, name)) attrs = with_defaults(attrs, type->fields);
  }

  static std::string type_of(const Section& section, const void* object) {
    return section.fields.empty() ? "" : std::get<std::string>(section.fields.front().get(object));
  }

  /// Fields of another `type` of the section do not belong. If the type itself is wrong, all fields do.
  bool belongs(const Field& field, const Section& section, const void* object, const std::string& path) const {
    if (field.only.empty() || problems_.touch(at_key(path, "type"))) return true;
    const std::string type = type_of(section, object);
    return type.empty() || std::find(field.only.begin(), field.only.end(), type) != field.only.end();
  }

  void refuse_field(const Field& field, const Section& section, const void* object, const SourcePos& pos,
                    const std::string& where) {
    const std::string type = type_of(section, object);
    const bool holds_out_texts = field.name == "split" && (type == "text" || type == "chat" || type == "tokens");
    problems_.add(pos, where, "'" + field.name + "' is for " + in_words(field.only, " and ") + ", not for " + type,
                  holds_out_texts ? "hold out a file of its own: validation: {dataset: {path: held_out.txt}}" : "");
  }

  /// Reports a field of the other kind of job.
  void refuse_kind(const Field& field, const Section& section, const SourcePos& pos, const std::string& where) {
    if (kind_ == JobKind::network) {
      problems_.add(pos, where, "'" + field.name + "' is only for jobs with a command, but this job has a network");
      return;
    }
    std::vector<std::string> others;
    for (const Field& one : section.fields)
      if (belongs_to(one, kind_)) others.push_back(one.name);
    problems_.add(
        pos, where, "'" + field.name + "' is not for jobs with a command",
        "valid fields of " + (section.name.empty() ? "a job" : section.name) + " with a command: " + join(others));
  }

  void read(const YamlNode& node, const Field& field, void* object, const std::string& path) {
    switch (field.kind) {
      case FieldKind::section:
        return subsection(node, field, object, path);
      case FieldKind::words:
        job_.command = read_command(node, path, problems_);
        return;
      case FieldKind::variables:
        job_.env = read_environment(node, path, problems_);
        return;
      case FieldKind::names:
        return print(node, path);
      case FieldKind::patterns:
        return layer_patterns(node, path);
      case FieldKind::paths:
        return read_paths(node, path, field.list(object), problems_);
      case FieldKind::metric_names:
        field.list(object) = read_texts(node, path, "a name", problems_);
        return;
      case FieldKind::transforms:
        return read_transforms(node, *static_cast<DatasetSpec*>(object), path, problems_);
      case FieldKind::sample_fields:
        return read_sample_fields(node, *static_cast<DatasetSpec*>(object), path, problems_);
      case FieldKind::sources:
        return sources(node, *static_cast<DatasetSpec*>(object), path);
      case FieldKind::shares:
        static_cast<DatasetSpec*>(object)->mix = read_shares(node, path, problems_);
        return;
      case FieldKind::share_changes:
        return read_share_changes(node, *static_cast<DatasetSpec*>(object), path, problems_);
      case FieldKind::named_paths:
        return read_named_paths(node, *static_cast<DatasetSpec*>(object), path, problems_);
      case FieldKind::split:
        return read_split(node, field, object, path, problems_);
      case FieldKind::metrics:
        return read_metrics(node, path, job_, problems_);
      case FieldKind::losses:
        return auxiliary_losses(node, path);
      case FieldKind::modules:
        modules_ = read_modules(node, path, expander_, problems_);
        return;
      case FieldKind::values:
        return;  // the vars, which all else has been read with
      case FieldKind::groups:
        return read_parameter_groups(node, path, job_.optimizer, problems_);
      case FieldKind::segments:
        return segments(node, *static_cast<ScheduleSpec*>(object), path);
      case FieldKind::trackers:
        return trackers(node, path);
      case FieldKind::layers:
        return network(node, path);
      case FieldKind::stage_map:
        return stage_config(node, path);
      case FieldKind::strategy_map:
        return strategies(node, path);
      default:
        if (std::optional<Value> value = read_value(node, field, path, problems_))
          set_value(field, object, std::move(*value));
    }
  }

  void subsection(const YamlNode& node, const Field& field, void* object, const std::string& path) {
    void* inner = field.object(object, true);
    if (inner == nullptr) {
      if (!problems_.touch("precision"))
        problems_.add(node.pos, path, "'" + field.name + "' is for jobs with precision: " + field.name,
                      "set precision: " + field.name);
      return;
    }
    for (const Field& one : field.section->fields) {
      if (one.name != field.stands_for || !(node.is_scalar() || (node.is_list() && one.kind == FieldKind::names)))
        continue;
      read(node, one, inner, path);
      return require_others(node, one, *field.section, inner, path);
    }
    section(node, *field.section, inner, path);
  }

  /// A bare value gives one field of a section: it must not need others.
  void require_others(const YamlNode& node, const Field& given, const Section& section, void* object,
                      const std::string& path) {
    for (const Field& other : section.fields)
      if (other.is_required && other.name != given.name && belongs_to(other, kind_) &&
          belongs(other, section, object, path) && (other.only.empty() || !problems_.touch(at_key(path, "type"))))
        problems_.add(node.pos, at_key(path, other.name), section.name + " needs '" + other.name + "'",
                      other.name + ": " + kind_text(other));
  }

  void network(const YamlNode& node, const std::string& path) {
    const LayerList layers = read_layers(node, path, problems_);
    const std::vector<std::string> fields = job_.dataset.field_names();
    network_ = unroll(layers, modules_, fields, vars_, expander_, problems_);
    job_.network = std::move(network_.layers);
    if (job_.network.empty() && !layers.empty() && network_.complete && !problems_.touch("network"))
      problems_.add(node.pos, path, "must have at least one layer, but every layer has if: false");
  }

  void print(const YamlNode& node, const std::string& path) {
    const std::vector<std::string> names = read_texts(node, path, "the name of a layer", problems_);
    for (size_t i = 0; i < names.size(); ++i) {
      const auto known = network_.outputs.find(names[i]);
      if (known != network_.outputs.end()) {
        job_.print.tensors.push_back(known->second);
      } else if (refuse_several(names[i], node.is_list() ? node.items[i].pos : node.pos, at_index(path, i))) {
        continue;
      } else if (network_.complete && !problems_.full()) {
        problems_.add(node.is_list() ? node.items[i].pos : node.pos, at_index(path, i),
                      "there is no layer '" + names[i] + "'", did_you_mean(names[i], network_.print_names));
      }
    }
  }

  /// A name or glob must match some layer; the loss counts as a layer named "loss".
  void demand_match(const std::string& pattern, const SourcePos& pos, const std::string& path) {
    if (!network_.complete || problems_.full() || (pattern == "loss" && job_.loss) || matches(pattern)) return;
    if (problems_.touch("network") || problems_.touch("modules")) return;
    if (is_name_pattern(pattern)) {
      problems_.add(pos, path, "no layer matches '" + pattern + "'", nearest_layer(pattern));
    } else if (const std::string layer = layer_of_output(pattern); !layer.empty()) {
      problems_.add(pos, path, "'" + pattern + "' is an output of layer '" + layer + "'",
                    "name the layer: '" + layer + "'");
    } else if (network_.outputs.contains(pattern) || network_.several.contains(pattern)) {
      problems_.add(pos, path, "'" + pattern + "' is a module, not a layer",
                    "to select all of its layers: '" + pattern + ".*'");
    } else {
      problems_.add(pos, path, "there is no layer '" + pattern + "'", nearest_layer(pattern));
    }
  }

  bool matches(const std::string& pattern) {
    if (layer_names_.empty()) {
      for (const LayerSpec& layer : job_.network) {
        layer_names_.insert(layer.name);
        for (const LayerSpec& added : added_layers(layer)) layer_names_.insert(added.name);
        for (const LayerSpec& adapter : adapter_layers(job_, layer)) layer_names_.insert(adapter.name);
      }
    }
    if (!is_name_pattern(pattern)) return layer_names_.contains(pattern);
    return std::ranges::any_of(layer_names_, [&](const std::string& name) { return name_matches(pattern, name); });
  }

  /// The layer that has this as one of several outputs; "" if none has.
  std::string layer_of_output(const std::string& name) const {
    for (const LayerSpec& layer : job_.network) {
      const std::vector<std::string> outputs = layer.output_names();
      if (!layer.outputs.empty() && std::find(outputs.begin(), outputs.end(), name) != outputs.end()) return layer.name;
    }
    return "";
  }

  std::string nearest_layer(const std::string& pattern) const {
    std::vector<std::string> names;
    for (const LayerSpec& layer : job_.network) names.push_back(layer.name);
    if (job_.loss) names.emplace_back("loss");
    const std::string guess = did_you_mean(pattern, names);
    if (!guess.empty()) return guess;
    constexpr size_t kShown = 12;
    const bool more = names.size() > kShown;
    names.resize(std::min(names.size(), kShown));
    return "layers: " + join(names) + (more ? ", ..." : "");
  }

  /// parallel.recompute or parallel.offload.activations.
  void layer_patterns(const YamlNode& node, const std::string& path) {
    const std::vector<std::string> patterns = read_texts(node, path, "the name of a layer or a glob", problems_);
    if (problems_.touch(path) || !demand_few(node.pos, path, patterns.size(), problems_)) return;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const std::string where = node.is_list() ? at_index(path, i) : path;
      demand_match(patterns[i], node.is_list() ? node.items[i].pos : node.pos, where);
      if (path == "parallel.recompute")
        job_.parallel.recompute.push_back({patterns[i], where});
      else
        job_.parallel.offload.activations.push_back({patterns[i], where});
    }
  }

  void segments(const YamlNode& node, ScheduleSpec& schedule, const std::string& path) {
    constexpr const char* kExample = "e.g. [{steps: 100, type: linear}, {type: cosine}]";
    if (!node.is_list()) return problems_.add(node.pos, path, "must be a list, not " + describe(node), kExample);
    if (node.items.empty()) return problems_.add(node.pos, path, "must have at least one segment", kExample);
    if (!demand_few(node.pos, path, node.items.size(), problems_)) return;
    for (size_t i = 0; i < node.items.size(); ++i) {
      ScheduleSpec one;
      one.base = schedule.base;
      one.path = at_index(path, i);
      section(node.items[i], segment_section(), &one, one.path);
      schedule.segments.push_back(std::move(one));
    }
  }

  void stage_config(const YamlNode& node, const std::string& path) {
    if (!demand_map(node, path, "e.g. {layer1: 0, 'h.*': 1}", problems_)) return;
    Field stage;
    stage.kind = FieldKind::integer;
    stage.min = 0;
    stage.max = kMaxRanks - 1;
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string where = at_key(path, entry.key);
      demand_match(entry.key, entry.key_pos, where);
      if (const std::optional<Value> value = read_value(entry.value, stage, where, problems_))
        job_.parallel.stage_config.push_back({entry.key, static_cast<int>(std::get<int64_t>(*value)), where});
    }
  }

  void strategies(const YamlNode& node, const std::string& path) {
    if (!demand_map(node, path, "e.g. {layer1: [[2, 1], [2, 1]]}", problems_)) return;
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string where = at_key(path, entry.key);
      demand_match(entry.key, entry.key_pos, where);
      if (std::optional<std::vector<Ints>> cuts = read_int_lists(entry.value, cuts_field(), where, problems_)) {
        if (cuts->empty() && entry.value.items.empty()) {
          problems_.add(entry.value.pos, where, "the list is empty: expected cuts per dim for each input",
                        "e.g. [[2, 1], [2, 1]]");
        }
        job_.parallel.strategies.push_back({entry.key, std::move(*cuts), where});
      }
    }
  }

  /// `[mlflow, {type: wandb, to: PROJECT}, 'command: ./push.py']`; one stands for a list of one.
  void trackers(const YamlNode& node, const std::string& path) {
    const bool is_list = node.is_list();
    for (size_t i = 0; i < (is_list ? node.items.size() : 1); ++i) {
      const std::string where = is_list ? at_index(path, i) : path;
      const std::optional<YamlNode> fields = tracker_fields(is_list ? node.items[i] : node, where, problems_);
      if (!fields) continue;
      TrackerSpec tracker;
      tracker.path = where;
      section(*fields, tracker_section(), &tracker, where);
      job_.track.push_back(std::move(tracker));
    }
  }

  void auxiliary_losses(const YamlNode& node, const std::string& path) {
    if (!node.is_list()) {
      problems_.add(node.pos, path, "must be a list, not " + describe(node),
                    "e.g. [{type: mse, input: head2, label: size, weight: 0.1}]");
      return;
    }
    for (size_t i = 0; i < node.items.size(); ++i) {
      LossSpec loss;
      loss.path = at_index(path, i);
      section(node.items[i], auxiliary_loss_section(), &loss, loss.path);
      if (loss.name.empty()) loss.name = loss.type;
      job_.auxiliary_losses.push_back(std::move(loss));
    }
  }

  /// `{code: {type: text, …}, web: {…}}`.
  void sources(const YamlNode& node, DatasetSpec& mix, const std::string& path) {
    if (!demand_map(node, path, "e.g. {code: {type: text, path: 'code/*.txt', length: 256}}", problems_)) return;
    if (node.entries.empty()) problems_.add(node.pos, path, "must name at least one source");
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string where = at_key(path, entry.key);
      if (!is_sample_field_name(entry.key))
        problems_.add(entry.key_pos, where, "'" + entry.key + "' is not a valid name for a source",
                      "use letters, digits, '_' and '-', but not input, loss or grad");
      DatasetSpec source;
      source.name = entry.key;
      section(entry.value, source_section(), &source, where);
      mix.sources.push_back(std::move(source));
    }
  }

  JobSpec& job_;
  const JobKind kind_;
  const Names& vars_;
  Expander& expander_;
  Problems& problems_;
  Modules modules_;
  Network network_;
  std::set<std::string> layer_names_;
};

void record_positions(const YamlNode& node, const std::string& path, JobSpec& job) {
  job.positions[path] = node.pos;
  for (size_t i = 0; i < node.items.size(); ++i) record_positions(node.items[i], at_index(path, i), job);
  for (const YamlNode::Entry& entry : node.entries) record_positions(entry.value, at_key(path, entry.key), job);
}

/// A job that sets only train.steps is not limited by epochs.
void choose_run_length(const YamlNode& root, TrainSpec& train) {
  const YamlNode* section = root.find("train");
  const YamlNode* epochs = section ? section->find("epochs") : nullptr;
  if (train.steps > 0 && (!epochs || epochs->is_null())) train.epochs = 0;
}

}  // namespace

void read_job(YamlNode& root, JobSpec& job, Problems& problems) {
  const YamlNode* command = root.find("command");
  const JobKind kind = command && !command->is_null() ? JobKind::command : JobKind::network;
  Expander expander(job.source, job.file, problems);
  Names vars;
  if (kind == JobKind::network) {  // a command has ${…} of its shell
    vars = read_vars(root, expander, problems);
    if (!problems.empty() || !expand_job(root, vars, expander)) return;
  }
  record_positions(root, "", job);
  JobReader reader(job, kind, vars, expander, problems);
  reader.section(root, job_section(), &job, "");
  reader.finish();
  choose_run_length(root, job.train);
}

}  // namespace trainctl
