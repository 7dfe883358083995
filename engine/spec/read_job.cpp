// YAML tree -> JobSpec, section by section, following the field table.
#include "engine/spec/read_job.h"

#include <algorithm>
#include <numeric>

#include "engine/base/text.h"
#include "engine/spec/dataset_fields.h"
#include "engine/spec/fields.h"
#include "engine/spec/foreign_names.h"
#include "engine/spec/layer_references.h"
#include "engine/spec/misplaced_fields.h"
#include "engine/spec/network.h"
#include "engine/spec/plugins.h"
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

class JobReader {
 public:
  JobReader(JobSpec& job, JobKind kind, const Names& vars, Expander& expander, Problems& problems)
      : job_(job), kind_(kind), vars_(vars), expander_(expander), problems_(problems) {}

  /// Returns whether a section has the field `path` misspelt or under a name of another tool, which is an error of its
  /// own.
  static bool has_foreign_name(const YamlNode& node, const Section& section, const std::string& path) {
    return std::any_of(node.entries.begin(), node.entries.end(), [&](const YamlNode::Entry& entry) {
      const ForeignName* foreign = find_foreign(NameKind::field, entry.key);
      const bool is_own = std::any_of(section.fields.begin(), section.fields.end(),
                                      [&](const Field& one) { return one.name == entry.key; });
      const std::string name = path.substr(path.rfind('.') + 1);
      return !is_own && ((foreign != nullptr && foreign->ours == path) || nearest(entry.key, {name}) == name);
    });
  }

  void section(const YamlNode& node, const Section& section, void* object, const std::string& path) {
    if (!node.is_map() && !node.is_null()) {
      refuse_one_value(node, section, path, problems_);
      return;
    }
    const std::string what = section.name.empty() ? "a job" : section.name;
    refuse_unknown_fields(node, section, kind_, what, path, problems_);
    for (const Field& field : section.fields) {
      const auto entry = std::find_if(node.entries.begin(), node.entries.end(),
                                      [&](const YamlNode::Entry& e) { return e.key == field.name; });
      const bool given = entry != node.entries.end() && !entry->value.is_null();
      const std::string where = at_key(path, field.name);
      if (!belongs_to(field, kind_)) {
        if (given) refuse_field_of_job(field, section, kind_, entry->key_pos, where, problems_);
      } else if (!belongs(field, section, object, path)) {
        if (given) refuse_field_of_type(field, type_of(section, object), entry->key_pos, where, problems_);
      } else if (given) {
        read(entry->value, field, object, where);
      } else if (field.is_required && entry == node.entries.end() && has_foreign_name(node, section, where)) {
        continue;  // reported with the name that it should have
      } else if (field.is_required && (field.only.empty() || !problems_.touch(at_key(path, "type")))) {
        problems_.add(entry != node.entries.end() ? entry->value.pos : node.pos, where,
                      what + " needs '" + field.name + "'",
                      field.name + ": " + kind_text(field) +
                          (field.kind == FieldKind::layers ? ", or use command: [python3, train.py] instead" : ""));
      }
    }
  }

  /// Does what needs the whole job: resolves names of layers and fills in defaults that depend on other fields.
  void finish() {
    add_metrics_of_validation(job_, problems_);
    adapters_of_documents();
    for (size_t i = 0; job_.fp8 && i < job_.fp8->layers.size(); ++i) {
      const std::string path = at_index("fp8.layers", i);
      references_.demand_match(job_.fp8->layers[i], job_.position(path), path);
    }
    fill_in(job_.optimizer.type, optimizer_types(), job_.optimizer.attrs);
    if (job_.loss) outputs_of(*job_.loss);
    for (LossSpec& loss : job_.auxiliary_losses) outputs_of(loss);
    if (!job_.launch.machines.empty()) job_.launch.machine = job_.launch.machines.front();
    ParallelSpec& parallel = job_.parallel;
    const int64_t sum =
        std::accumulate(parallel.rank_micro_batches.begin(), parallel.rank_micro_batches.end(), int64_t{0});
    if (parallel.micro_batches == 1 && sum > 1 && sum <= kMaxMicroBatches)
      parallel.micro_batches = static_cast<int>(sum);
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
      for (size_t i = 0; i < loss.inputs.size(); ++i) references_.replace_by_output(loss.inputs[i], at_index(path, i));
      if (!loss.inputs.empty()) loss.input = loss.inputs.front();
    } else if (loss.input.empty()) {
      const auto last = network_.outputs.find(network_.last);
      if (last != network_.outputs.end()) loss.input = last->second;
      references_.refuse_several(network_.last, job_.position(loss.path), loss.path);
    } else {
      references_.replace_by_output(loss.input, at_key(loss.path, "input"));
    }
  }

  /// Passes the adapters of the job to data sets of documents: a field of a document has the name or number of its
  /// adapter, and becomes a field of the samples.
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

  /// Fills in the defaults of the type's own fields.
  static void fill_in(const std::string& name, const std::vector<EntryType>& types, Attrs& attrs) {
    if (const EntryType* type = find_type(types, name)) attrs = with_defaults(attrs, type->fields);
  }

  static std::string type_of(const Section& section, const void* object) {
    return section.fields.empty() ? "" : std::get<std::string>(section.fields.front().get(object));
  }

  /// Returns whether a field may be given with the section's `type`. If the type itself is wrong, all fields may.
  bool belongs(const Field& field, const Section& section, const void* object, const std::string& path) const {
    if (field.only.empty() || problems_.touch(at_key(path, "type"))) return true;
    const std::string type = type_of(section, object);
    return type.empty() || std::find(field.only.begin(), field.only.end(), type) != field.only.end();
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
      case FieldKind::any_names:
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

  /// Checks a section that is given as a single value, which stands for one field: the section must not require others.
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
      } else if (references_.refuse_several(names[i], node.is_list() ? node.items[i].pos : node.pos,
                                            at_index(path, i))) {
        continue;
      } else if (network_.complete && !problems_.full()) {
        problems_.add(node.is_list() ? node.items[i].pos : node.pos, at_index(path, i),
                      "there is no layer '" + names[i] + "'", did_you_mean(names[i], network_.print_names));
      }
    }
  }

  /// Reads the list of layer patterns of parallel.recompute or parallel.offload.activations.
  void layer_patterns(const YamlNode& node, const std::string& path) {
    const std::vector<std::string> patterns = read_texts(node, path, "the name of a layer or a glob", problems_);
    if (problems_.touch(path) || !demand_few(node.pos, path, patterns.size(), problems_)) return;
    if (!patterns.empty() && patterns[0].starts_with('!'))
      problems_.add(node.is_list() ? node.items[0].pos : node.pos, node.is_list() ? at_index(path, 0) : path,
                    "'" + patterns[0] + "' excludes layers, but no earlier pattern names any",
                    "e.g. ['h.*', '!h.*.attn'], which names all layers of blocks h except attn");
    for (size_t i = 0; i < patterns.size(); ++i) {
      const std::string where = node.is_list() ? at_index(path, i) : path;
      const std::string named = patterns[i].substr(patterns[i].starts_with('!') ? 1 : 0);  // '!' excludes layers
      references_.demand_match(named, node.is_list() ? node.items[i].pos : node.pos, where);
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
      references_.demand_match(entry.key, entry.key_pos, where);
      if (const std::optional<Value> value = read_value(entry.value, stage, where, problems_))
        job_.parallel.stage_config.push_back({entry.key, static_cast<int>(std::get<int64_t>(*value)), where});
    }
  }

  void strategies(const YamlNode& node, const std::string& path) {
    if (!demand_map(node, path, "e.g. {layer1: [[2, 1], [2, 1]]}", problems_)) return;
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string where = at_key(path, entry.key);
      references_.demand_match(entry.key, entry.key_pos, where);
      if (std::optional<std::vector<Ints>> cuts = read_int_lists(entry.value, cuts_field(), where, problems_)) {
        if (cuts->empty() && entry.value.items.empty()) {
          problems_.add(entry.value.pos, where, "the list is empty: expected cuts per dim for each input",
                        "e.g. [[2, 1], [2, 1]]");
        }
        job_.parallel.strategies.push_back({entry.key, std::move(*cuts), where});
      }
    }
  }

  /// Reads `track`, such as `[mlflow, {type: wandb, to: PROJECT}, 'command: ./push.py']`. A single tracker may be
  /// written without a list.
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

  /// Reads dataset.sources, such as `{code: {type: text, …}, web: {…}}`.
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
  LayerReferences references_{job_, network_, problems_};
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

void read_job(YamlNode& root, const JobText& from, JobSpec& job, Problems& problems) {
  const YamlNode* command = root.find("command");
  const JobKind kind = command && !command->is_null() ? JobKind::command : JobKind::network;
  Expander expander(job.source, job.file, problems);
  Names vars;
  if (kind == JobKind::network) {  // a command has ${…} of its shell
    vars = read_vars(root, expander, problems);
    if (!problems.empty() || !expand_job(root, vars, expander)) return;
  }
  record_positions(root, "", job);
  if (kind == JobKind::network && !load_plugins(root, from, problems)) return;
  JobReader reader(job, kind, vars, expander, problems);
  reader.section(root, job_section(), &job, "");
  reader.finish();
  choose_run_length(root, job.train);
}

}  // namespace trainctl
