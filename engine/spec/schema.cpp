// The field table as JSON Schema, draft 2020-12, which editors use to complete and check.
#include <nlohmann/json.hpp>

#include "engine/spec/fields.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/parse.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

Json json(const Value& value) {
  return std::visit([](const auto& v) { return Json(v); }, value);
}

bool finite(double v) { return v > -1e300 && v < 1e300; }

/// Whole numbers without ".0".
Json bound(double v) {
  return v == static_cast<double>(static_cast<int64_t>(v)) ? Json(static_cast<int64_t>(v)) : Json(v);
}

void add_range(Json& schema, const Field& field) {
  if (finite(field.min)) schema[field.min_open ? "exclusiveMinimum" : "minimum"] = bound(field.min);
  if (finite(field.max)) schema[field.max_open ? "exclusiveMaximum" : "maximum"] = bound(field.max);
}

Json list_of(Json item, int length = 0) {
  Json schema = {{"type", "array"}, {"items", std::move(item)}};
  if (length) schema["minItems"] = schema["maxItems"] = length;
  return schema;
}

Json number_schema(const char* type, const Field& field) {
  Json schema = {{"type", type}};
  add_range(schema, field);
  return schema;
}

Json with_unit(const char* pattern, const Field& field) {
  return {{"anyOf", {number_schema("number", field), {{"type", "string"}, {"pattern", pattern}}}}};
}

Json reference(const char* name) { return {{"$ref", std::string("#/$defs/") + name}}; }

Json section_schema(const Section& section);

Json value_schema(const Field& field) {
  const Json text = {{"type", "string"}};
  switch (field.kind) {
    case FieldKind::flag:
      return {{"type", "boolean"}};
    case FieldKind::integer:
      return number_schema("integer", field);
    case FieldKind::number:
      return number_schema("number", field);
    case FieldKind::text:
      return text;
    case FieldKind::choice:
      return {{"enum", field.choices}};
    case FieldKind::ints:
      return list_of(number_schema("integer", field), field.length);
    case FieldKind::numbers: {
      const Json list = list_of(number_schema("number", field), field.length);
      return field.length ? list : Json{{"anyOf", {list, number_schema("number", field)}}};
    }
    case FieldKind::int_lists:
      return list_of(list_of(number_schema("integer", field)));
    case FieldKind::bytes:
      return with_unit("^[0-9.]+ ?([KMGT]i?)?B$", field);
    case FieldKind::seconds:
      return with_unit("^[0-9.]+ ?(ms|s|m|min|h)$", field);
    case FieldKind::section: {
      Json mapping = section_schema(*field.section);
      if (field.stands_for.empty()) return mapping;
      for (const Field& one : field.section->fields)
        if (one.name == field.stands_for) return {{"anyOf", {value_schema(one), mapping}}};
      return mapping;
    }
    case FieldKind::words: {
      Json words = list_of({{"type", {"string", "number", "boolean"}}});
      words["minItems"] = 1;
      return words;
    }
    case FieldKind::variables:
      return {{"type", "object"}, {"additionalProperties", {{"type", {"string", "number", "boolean"}}}}};
    case FieldKind::names:
    case FieldKind::patterns:
      return {{"anyOf", {text, list_of(text)}}};
    case FieldKind::transforms:
      return list_of(reference("transform"));
    case FieldKind::layers:
      return list_of(reference("layer"));
    case FieldKind::modules:
      return {{"type", "object"}, {"additionalProperties", list_of(reference("layer"))}};
    case FieldKind::stage_map:
      return {{"type", "object"}, {"additionalProperties", {{"type", "integer"}, {"minimum", 0}}}};
    case FieldKind::strategy_map:
      return {{"type", "object"}, {"additionalProperties", list_of(list_of({{"type", "integer"}, {"minimum", 1}}))}};
  }
  return Json::object();
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

Json object_schema(const std::vector<Field>& fields, const Section* section, const std::string& doc) {
  Json properties = Json::object(), required = Json::array();
  for (const Field& field : fields) {
    properties[field.name] = field_schema(field, section);
    // The parser checks what only some types require.
    if (field.is_required && field.only.empty() && field.job == JobKind::any) required.push_back(field.name);
  }
  Json schema = {{"type", "object"}, {"description", doc}, {"properties", properties}, {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = required;
  return schema;
}

Json section_schema(const Section& section) { return object_schema(section.fields, &section, section.doc); }

/// The fields that a job of that kind must have, and those that it must not have.
Json kind_schema(JobKind kind) {
  Json required = Json::array(), refused = Json::object();
  for (const Field& field : job_section().fields) {
    if (!belongs_to(field, kind))
      refused[field.name] = false;
    else if (field.is_required || field.kind == FieldKind::words)
      required.push_back(field.name);
  }
  return {{"required", required}, {"properties", refused}};
}

Json layer_schema() {
  Json any = Json::array();
  for (const EntryType& type : layer_types()) {
    std::vector<Field> fields = common_layer_fields();
    fields.insert(fields.end(), type.fields.begin(), type.fields.end());
    Json schema = object_schema(fields, nullptr, type.doc);
    schema["properties"]["type"] = {{"const", type.name}, {"description", type.doc}};
    any.push_back(schema);
  }
  any.push_back(object_schema(module_use_fields(), nullptr, "A module in place of a layer."));
  return {{"oneOf", any}};
}

Json transform_schema() {
  Json any = Json::array();
  for (const EntryType& type : transform_types()) {
    if (type.fields.empty()) {
      any.push_back({{"const", type.name}, {"description", type.doc}});
      continue;
    }
    Json value = object_schema(type.fields, nullptr, type.doc);
    if (type.fields.size() == 1) value = {{"anyOf", {value_schema(type.fields[0]), value}}};
    any.push_back({{"type", "object"},
                   {"description", type.doc},
                   {"properties", {{type.name, value}}},
                   {"required", {type.name}},
                   {"additionalProperties", false}});
  }
  return {{"oneOf", any}};
}

}  // namespace

std::string job_schema() {
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "trainctl job"}};
  schema.update(section_schema(job_section()));
  schema["oneOf"] = {kind_schema(JobKind::network), kind_schema(JobKind::command)};
  schema["$defs"] = {{"layer", layer_schema()}, {"transform", transform_schema()}};
  return schema.dump(2) + "\n";
}

}  // namespace trainctl
