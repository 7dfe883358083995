// Generates the tables of docs/job.md from the field table.
#include "engine/spec/reference.h"

#include "engine/base/text.h"
#include "engine/spec/fields.h"
#include "engine/spec/trackers.h"
#include "engine/spec/update_fields.h"

namespace trainctl {
namespace {

using Tables = std::vector<std::pair<std::string, std::string>>;

std::string code(const std::string& text) { return text.empty() ? "" : "`" + text + "`"; }

/// Escapes a text for a cell of a Markdown table, where a bar would end the cell.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

std::string row(const std::vector<std::string>& cells) {
  std::vector<std::string> escaped;
  for (const std::string& one : cells) escaped.push_back(cell(one));
  return "| " + join(escaped, " | ") + " |\n";
}

std::string field_row(const Field& field, const Section* section, std::vector<std::string> first) {
  const std::string scope = scope_text(field);
  const std::string doc = field.doc + (scope.empty() ? "" : " " + scope);
  const std::string fallback = field.is_required ? "required" : code(default_text(field, section));
  first.insert(first.end(), {code(field.name), kind_text(field), fallback, doc});
  return row(first);
}

std::string fields_table(const std::vector<Field>& fields, const Section* section) {
  std::string table = row({"field", "value", "default", "meaning"}) + "|---|---|---|---|\n";
  for (const Field& field : fields) table += field_row(field, section, {});
  return table;
}

void add_section(const Section& section, Tables& tables) {
  tables.emplace_back(section.name.empty() ? "job" : section.name, fields_table(section.fields, &section));
  for (const Field& field : section.fields)
    if (field.section) add_section(*field.section, tables);
}

std::string types_table(const std::string& heading, const std::vector<EntryType>& types) {
  std::string table = row({heading, "field", "value", "default", "meaning"}) + "|---|---|---|---|---|\n";
  for (const EntryType& type : types) {
    table +=
        row({"**" + type.name + "**", "", "", "", type.doc + (type.collective ? " For hybrid_parallel only." : "")});
    for (const Field& field : type.fields) table += field_row(field, nullptr, {""});
  }
  return table;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> reference_tables() {
  Tables tables;
  add_section(job_section(), tables);
  tables.emplace_back("auxiliary_losses", fields_table(auxiliary_loss_section().fields, &auxiliary_loss_section()));
  tables.emplace_back("track", fields_table(tracker_section().fields, &tracker_section()));
  tables.emplace_back("transforms", types_table("transform", transform_types()));
  tables.emplace_back("metrics", types_table("metric", metric_types()));
  tables.emplace_back("every layer", fields_table(common_layer_fields(), nullptr));
  tables.emplace_back("use of a module", fields_table(module_use_fields(), nullptr));
  tables.emplace_back("layers", types_table("type", layer_types()));
  tables.emplace_back("initial values", types_table("type", initial_types()));
  return tables;
}

}  // namespace trainctl
