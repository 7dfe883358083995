// metrics.jsonl as rows and columns.
#include "cli/render/metric_rows.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/text/csv.h"
#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/printable.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

bool is_of(RowKind kind, const Json& line) {
  const std::string named = field_or(line, "kind", "");
  if (kind == RowKind::validations) return named == "validation";
  if (kind == RowKind::loads) return named == "loads";
  if (kind == RowKind::epochs) return line.contains("epoch_end");
  return line.contains("step") && line.contains("run_step") && !line.contains("kind");
}

std::string cell(const Json& value) { return printable(value.is_string() ? value.get<std::string>() : value.dump()); }

}  // namespace

RowKind row_kind(std::string_view name) {
  if (name == "epochs") return RowKind::epochs;
  if (name == "loads") return RowKind::loads;
  return name == "validations" ? RowKind::validations : RowKind::steps;
}

void MetricRows::keep_last(size_t count) {
  if (rows.size() > count) rows.erase(rows.begin(), rows.end() - static_cast<std::ptrdiff_t>(count));
}

std::string MetricRows::csv() const {
  std::string text = csv_line(columns);
  for (const auto& row : rows) text += csv_line(row);
  return text;
}

MetricRows read_metric_rows(const RunDirectory& run, RowKind kind) {
  const std::string path = run.file("metrics.jsonl");
  std::ifstream file(path);
  if (!file) throw EnvError("cannot open " + path + ": the run has not finished a step, or it ran a command");
  MetricRows found;
  std::string text;
  for (int64_t number = 1; std::getline(file, text) && !file.eof(); ++number) {
    const Json line = Json::parse(text, nullptr, false);
    if (!line.is_object()) throw SpecError({}, path, "line " + std::to_string(number) + " is not a JSON object");
    if (!is_of(kind, line)) continue;
    std::vector<std::string> row(found.columns.size());
    for (const auto& [key, value] : line.items()) {
      if (key == "kind" || key == "not_finite") continue;
      const std::string name = printable(key);
      auto column = std::find(found.columns.begin(), found.columns.end(), name);
      if (column == found.columns.end()) {
        found.columns.push_back(name);
        row.emplace_back();
        column = found.columns.end() - 1;
      }
      row[static_cast<size_t>(column - found.columns.begin())] =
          value.is_null() && line.contains("not_finite") ? cell(line["not_finite"]) : cell(value);
    }
    found.rows.push_back(std::move(row));
  }
  for (auto& row : found.rows) row.resize(found.columns.size());
  return found;
}

}  // namespace trainctl
