// The field table as JSON Schema, draft 2020-12, which editors use to complete and check. It refuses all that the
// parser refuses by looking at one section or layer alone. It cannot express: names that refer to layers, sums and
// products of fields, shapes and plans (tests/spec/schema_agreement_test.cpp lists the kinds).
#include <algorithm>

#include "engine/spec/job_spec.h"
#include "engine/spec/network.h"
#include "engine/spec/parse.h"
#include "engine/spec/schema_values.h"
#include "engine/spec/trackers.h"
#include "engine/spec/update_fields.h"

namespace trainctl {
namespace schema {
namespace {

Json json(const Value& value) {
  return std::visit([](const auto& v) { return Json(v); }, value);
}

Json field_schema(const Field& field, const Section* section) {
  Json schema = value_schema(field);
  schema["description"] = field.doc;
  if (field.is_required) return schema;
  if (field.fallback)
    schema["default"] = json(*field.fallback);
  else if (const std::string text = default_text(field, section); !text.empty()) {
    // 0, true, "relu": values that are already JSON stay as they are.
    const Json parsed = Json::parse(text, nullptr, false);
    schema["default"] = parsed.is_discarded() ? Json(text) : parsed;
  }
  return schema;
}

/// The schema of a mapping with these fields. `section` is the section whose defaults apply, or null.
Json object_schema(const std::vector<Field>& fields, const Section* section, const std::string& doc) {
  Json properties = Json::object(), required = Json::array();
  for (const Field& field : fields) {
    if (const std::string mapping = mapping_of(field); !mapping.empty()) {
      Json& inner = properties[mapping];
      inner["type"] = "object";
      inner["properties"][field.name.substr(mapping.size() + 1)] = field_schema(field, section);
      inner["additionalProperties"] = false;
      continue;
    }
    properties[field.name] = field_schema(field, section);
    // The parser checks what only some types require.
    if (field.is_required && field.only.empty() && field.job == JobKind::any) required.push_back(field.name);
  }
  Json schema = {{"type", "object"}, {"description", doc}, {"properties", properties}, {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = required;
  return schema;
}

/// Returns the condition "if `type` of the section is `value`, then the section has the fields that this type requires,
/// and no fields of other types". Null if all types have the same fields.
Json if_then(const Section& section, const Field& type, const std::string& value) {
  Json required = Json::array(), refused = Json::object();
  for (const Field& field : section.fields) {
    if (field.only.empty()) continue;
    if (std::find(field.only.begin(), field.only.end(), value) == field.only.end())
      refused[field.name] = false;
    else if (field.is_required)
      required.push_back(field.name);
  }
  if (refused.empty() && required.empty()) return nullptr;
  Json condition = {{"properties", {{type.name, {{"const", value}}}}}};
  // A section without a type has the default type, and matches the condition.
  if (default_text(type, &section) != value) condition["required"] = {type.name};
  Json then = Json::object();
  if (!refused.empty()) then["properties"] = refused;
  if (!required.empty()) then["required"] = required;
  return {{"if", condition}, {"then", then}};
}

}  // namespace

Json section_schema(const Section& section) {
  Json schema = object_schema(section.fields, &section, section.doc);
  const auto type = std::find_if(section.fields.begin(), section.fields.end(),
                                 [](const Field& field) { return field.name == "type"; });
  if (type == section.fields.end()) return schema;
  for (const std::string& value : type->choices)
    if (Json rule = if_then(section, *type, value); !rule.is_null()) schema["allOf"].push_back(std::move(rule));
  return schema;
}

namespace {

/// The fields that a job of that kind must have, and those that it must not have, in its sections too.
Json kind_schema(const Section& section, JobKind kind) {
  Json required = Json::array(), properties = Json::object();
  for (const Field& field : section.fields) {
    if (!belongs_to(field, kind)) {
      properties[field.name] = false;
      continue;
    }
    const bool belongs_to_any = field.job == JobKind::any;
    if (!belongs_to_any && (field.is_required || field.kind == FieldKind::words)) required.push_back(field.name);
    if (field.section == nullptr || !belongs_to_any) continue;
    if (const Json inner = kind_schema(*field.section, kind); !inner.empty()) properties[field.name] = inner;
  }
  Json schema = Json::object();
  if (!required.empty()) schema["required"] = required;
  if (!properties.empty()) schema["properties"] = properties;
  return schema;
}

/// The schema of `inputs`: a list of names with count.least to count.most entries. A layer with one input may leave the
/// field out, or give the name without a list.
Json inputs_schema(const InputCount& count) {
  Json schema = {{"properties", {{"inputs", {{"minItems", count.least}, {"maxItems", count.most}}}}}};
  if (count.least > 1) {
    schema["required"] = {"inputs"};
    schema["properties"]["inputs"]["type"] = "array";
  }
  return schema;
}

/// The number of inputs of a layer of this type, which may depend on a field that gives it its own weight.
void add_input_count(Json& schema, const EntryType& type) {
  if (type.weight_field.empty()) {
    schema["allOf"] = {inputs_schema({type.min_inputs, type.max_inputs})};
    return;
  }
  schema["if"] = {{"required", {type.weight_field}}};
  schema["then"] = inputs_schema({type.min_inputs, type.min_inputs});
  schema["else"] = inputs_schema({type.max_inputs, type.max_inputs});
}

/// The fields that a layer or the use of a module may have, with the form of names.
Json entry_schema(const std::vector<Field>& fields, const std::string& doc) {
  Json schema = object_schema(fields, nullptr, doc);
  schema["properties"]["name"]["pattern"] = layer_name_pattern();
  schema["properties"]["inputs"]["minItems"] = 1;
  return schema;
}

Json layer_schema() {
  Json any = Json::array();
  for (const EntryType& type : layer_types()) {
    std::vector<Field> fields = common_layer_fields();
    fields.insert(fields.end(), type.fields.begin(), type.fields.end());
    Json schema = entry_schema(fields, type.doc);
    add_input_count(schema, type);
    if (type.num_outputs == nullptr) schema["properties"].erase("outputs");
    schema["properties"]["type"] = {{"const", type.name}, {"description", type.doc}};
    any.push_back(schema);
  }
  any.push_back(entry_schema(module_use_fields(), "Inserts a module."));
  any.push_back({{"type", "object"},
                 {"description", "A layer whose type is an expression."},
                 {"properties", {{"type", reference("expression")}}},
                 {"required", {"type"}}});
  return {{"oneOf", any}};
}

}  // namespace

Json groups_schema() {
  Json group = object_schema(parameter_group_fields(), nullptr, "Parameters with their own settings.");
  for (const EntryType& type : optimizer_types())
    for (const Field& field : type.fields)
      if (std::find(type.same_in_groups.begin(), type.same_in_groups.end(), field.name) == type.same_in_groups.end()) {
        group["properties"][field.name] = value_schema(field);
        group["properties"][field.name]["description"] = field.doc;
      }
  return list_of(group);
}

namespace {

/// The schema of `init`: a mapping of a type and its fields, or the name of the type alone if it requires no fields.
Json initial_schema() {
  Json any = Json::array();
  for (const EntryType& type : initial_types()) {
    const bool needs_nothing =
        std::none_of(type.fields.begin(), type.fields.end(), [](const Field& field) { return field.is_required; });
    if (needs_nothing) any.push_back({{"const", type.name}, {"description", type.doc}});
    Json mapping = object_schema(type.fields, nullptr, type.doc);
    mapping["properties"]["type"] = {{"const", type.name}};
    mapping["required"].push_back("type");
    any.push_back(mapping);
  }
  return {{"oneOf", any}};
}

Json transform_schema() {
  Json any = Json::array();
  for (const EntryType& type : transform_types()) {
    const bool needs_nothing =
        std::none_of(type.fields.begin(), type.fields.end(), [](const Field& field) { return field.is_required; });
    if (needs_nothing) any.push_back({{"const", type.name}, {"description", type.doc}});
    if (type.fields.empty()) continue;
    Json value = object_schema(type.fields, nullptr, type.doc);
    if (const Field* bare = bare_value_field(type)) value = {{"anyOf", {value_schema(*bare), value}}};
    any.push_back({{"type", "object"},
                   {"description", type.doc},
                   {"properties", {{type.name, value}}},
                   {"required", {type.name}},
                   {"additionalProperties", false}});
  }
  return {{"oneOf", any}};
}

/// The schema of a metric: the name of a type that requires no fields, or a mapping.
Json metric_schema() {
  Json any = Json::array();
  for (const EntryType& type : metric_types()) {
    const bool needs_nothing =
        std::none_of(type.fields.begin(), type.fields.end(), [](const Field& field) { return field.is_required; });
    if (needs_nothing) any.push_back({{"const", type.name}, {"description", type.doc}});
    Json mapping = object_schema(type.fields, nullptr, type.doc);
    mapping["properties"]["type"] = {{"const", type.name}};
    mapping["required"].push_back("type");
    any.push_back(std::move(mapping));
  }
  return {{"oneOf", any}};
}

/// The schema of a tracker: a name, a text 'command: PROGRAM', or a mapping. In a mapping, `command` also implies the
/// type.
Json tracker_schema() {
  Json names = tracker_section().fields.front().choices;
  names.erase(std::find(names.begin(), names.end(), "command"));
  Json mapping = section_schema(tracker_section());
  mapping["required"] = Json::array();
  mapping["anyOf"] = {{{"required", {"type"}}}, {{"required", {"command"}}}};
  return {{"anyOf", {{{"enum", names}}, {{"type", "string"}, {"pattern", "^command: *[^ ]"}}, mapping}}};
}

Json whole_schema() {
  Json all = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "trainctl job"}};
  all.update(section_schema(job_section()));
  all["if"] = {{"required", {"command"}}};
  all["then"] = kind_schema(job_section(), JobKind::command);
  all["else"] = kind_schema(job_section(), JobKind::network);
  all["$defs"] = {{"layer", layer_schema()},
                  {"transform", transform_schema()},
                  {"initial", initial_schema()},
                  {"metric", metric_schema()},
                  {"tracker", tracker_schema()},
                  {"expression",
                   {{"type", "string"},
                    {"pattern", R"(\$\{[^{}]*\})"},
                    {"description", "A value computed from vars and arguments: ${4*d}."}}}};
  return all;
}

}  // namespace
}  // namespace schema

std::string job_schema() { return schema::whole_schema().dump(2) + "\n"; }

}  // namespace trainctl
