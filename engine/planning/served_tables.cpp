// Tables: embeddings that are stored only on the servers, partitioned by rows.
#include "engine/planning/served_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/name_pattern.h"
#include "engine/base/text.h"
#include "engine/ops/embedding/table_layer.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {
namespace {

class TablePlanner {
 public:
  TablePlanner(const JobSpec& spec, const DataShapes& shapes) : spec_(spec), shapes_(shapes) {}

  std::vector<ServedTable> plan() {
    for (size_t i = 0; i < spec_.parallel.tables.size(); ++i) take_pattern(i);
    std::vector<ServedTable> tables;
    for (const LayerSpec& layer : spec_.network)
      if (is_table(layer)) add(layer, tables);
    for (const ServedTable& table : tables) require_own_field(table, tables);
    std::set<std::string> fields;
    for (const ServedTable& table : tables) fields.insert(table.field);
    if (fields.size() > static_cast<size_t>(kMostTableFields))
      error("parallel.tables",
            fmt::format("tables read {} sample fields, but the limit is {}", fields.size(), kMostTableFields),
            "combine several ids in one field");
    if (!errors_.empty()) throw SpecError(std::move(errors_));
    return tables;
  }

 private:
  void error(std::string path, std::string message, std::string hint = {}) {
    const SourcePos pos = spec_.position(path);
    errors_.push_back({pos, std::move(path), std::move(message), std::move(hint)});
  }

  static bool can_be_table(const LayerSpec& layer) {
    const LayerDef* def = find_layer(layer.type);
    return def != nullptr && !table_rows_field(*def).empty();
  }

  /// Adds the tables that pattern number `index` of parallel.tables names.
  void take_pattern(size_t index) {
    const std::string& pattern = spec_.parallel.tables[index];
    const std::string path = fmt::format("parallel.tables[{}]", index);
    bool found = false;
    std::vector<std::string> names;
    for (const LayerSpec& layer : spec_.network) {
      if (can_be_table(layer)) names.push_back(layer.name);
      if (!name_matches(pattern, layer.name)) continue;
      found = true;
      if (can_be_table(layer))
        layers_.push_back(&layer);
      else if (!is_name_pattern(pattern))
        error(path, fmt::format("layer {} is of type {}, which has no table of rows", layer.name, layer.type),
              "only layers such as embedding can be tables");
    }
    if (!found || (is_name_pattern(pattern) && layers_.empty()))
      error(path, fmt::format("there is no layer '{}' that can be a table", pattern),
            names.empty() ? "the network has no embedding" : did_you_mean(pattern, names));
  }

  bool is_table(const LayerSpec& layer) const {
    return std::find(layers_.begin(), layers_.end(), &layer) != layers_.end();
  }

  void add(const LayerSpec& layer, std::vector<ServedTable>& tables) {
    const DataField* field = layer.inputs.empty() ? nullptr : shapes_.find(layer.inputs.front());
    if (field == nullptr || !field->is_integer)
      return error(layer.path,
                   fmt::format("{} is a table, so its input must be a sample field of integers", layer.name),
                   "set inputs: [field], or remove the layer from parallel.tables");
    if (layer.attrs.has("share") && !layer.attrs.text("share").empty())
      return error(layer.path,
                   fmt::format("{} is a table, but shares the weight of {}", layer.name, layer.attrs.text("share")),
                   "remove one of them from parallel.tables, or remove share");
    ServedTable table;
    table.layer = layer.name;
    table.tensor = layer.name + ".weight";
    table.field = field->name;
    table.rows_field = table_rows_field(*find_layer(layer.type));
    table.rows = layer.attrs.integer(table.rows_field);
    const int64_t sharing = spec_.is_asynchronous() ? 1 : spec_.launch.ranks;  // workers in step share a batch
    const int64_t samples = std::max<int64_t>(1, spec_.dataset.batch / sharing);
    table.window = std::min(table.rows, capped_product(samples, num_elements(field->shape)));
    tables.push_back(std::move(table));
  }

  /// Throws SpecError if another layer reads the field of ids too. The ids are replaced by positions in the window,
  /// which are the same for all tables of the field, so only tables can read the field.
  void require_own_field(const ServedTable& table, const std::vector<ServedTable>& tables) {
    for (const LayerSpec& layer : spec_.network) {
      if (is_table(layer) || std::find(layer.inputs.begin(), layer.inputs.end(), table.field) == layer.inputs.end())
        continue;
      error(
          layer.path,
          fmt::format("{} reads {}, whose integers are row ids of the table {}", layer.name, table.field, table.layer),
          "only tables can read that field");
    }
    const auto cached = [&](const ServedTable& of) { return row_life_of(spec_, of).cached_batches; };
    for (const ServedTable& other : tables)
      if (&other < &table && other.field == table.field && cached(other) != cached(table))
        error(layer_path(table.layer),
              fmt::format("tables {} and {} both read {}, so their rows are exchanged together, but their {} are {} "
                          "and {}",
                          other.layer, table.layer, table.field, kCachedBatches, cached(other), cached(table)),
              "set the same value for both, or use separate fields");
    for (const ServedTable& other : tables)
      if (&other < &table && other.field == table.field && other.rows != table.rows)
        error(spec_.network.empty() ? "" : "parallel.tables",
              fmt::format("tables {} and {} both read {}, but have {} and {} rows", other.layer, table.layer,
                          table.field, with_commas(other.rows), with_commas(table.rows)),
              "use the same number of rows for both, or separate fields");
  }

  std::string layer_path(const std::string& name) const {
    for (const LayerSpec& layer : spec_.network)
      if (layer.name == name) return layer.path;
    return "parallel.tables";
  }

  const JobSpec& spec_;
  const DataShapes& shapes_;
  std::vector<const LayerSpec*> layers_;
  std::vector<Diagnostic> errors_;
};

}  // namespace

RowLife row_life_of(const JobSpec& spec, const ServedTable& table) {
  RowLife life;
  for (const LayerSpec& layer : spec.network)
    if (layer.name == table.layer)
      life = {layer.attrs.integer(kCachedBatches, life.cached_batches),
              layer.attrs.integer(kAdmitAfter, life.admit_after), layer.attrs.integer(kExpireAfter, life.expire_after)};
  return life;
}

std::vector<ServedTable> plan_tables(const JobSpec& spec, const DataShapes& shapes) {
  if (spec.servers() == 0 || spec.parallel.tables.empty()) return {};
  return TablePlanner(spec, shapes).plan();
}

JobSpec with_windows(JobSpec spec, const std::vector<ServedTable>& tables) {
  for (LayerSpec& layer : spec.network)
    for (const ServedTable& table : tables)
      if (layer.name == table.layer) layer.attrs.set(table.rows_field, table.window);
  return spec;
}

nlohmann::ordered_json tables_json(const std::vector<ServedTable>& tables, const OptimizerSpec& spec) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const ServedTable& t : tables) {
    const Optimizer optimizer(spec.type, spec.settings_of(t.group));
    const int64_t row = t.units * byte_size(DType::f32);
    rows.push_back({{"layer", t.layer},
                    {"field", t.field},
                    {"rows", t.rows},
                    {"units", t.units},
                    {"window", t.window},
                    {"bytes_if_whole", t.rows * row},
                    {"bytes_of_row", row * static_cast<int64_t>(1 + optimizer.states().size())},
                    {"bytes_of_window", t.window * row}});
  }
  return rows;
}

TensorId find_table(const Graph& graph, ServedTable& table) {
  const auto tensor = graph.find_tensor(table.tensor);
  check(tensor.has_value(), "a table has a weight: " + table.tensor);
  const Tensor& weight = graph.tensors[static_cast<size_t>(*tensor)];
  check(weight.shape.size() == 2 && weight.shape[0] == table.window, "a table's window has its rows");
  table.units = weight.shape[1];
  table.init = weight.init;
  for (const Update& update : graph.updates)
    if (update.parameter == *tensor) table.group = update.group;
  return *tensor;
}

}  // namespace trainctl
