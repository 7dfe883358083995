// JSON Schema of a field's value, by its kind.
#include "engine/spec/schema_values.h"

#include <limits>

#include "engine/spec/dataset_fields.h"
#include "engine/spec/expression.h"
#include "engine/spec/foreign_names.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/network.h"
#include "engine/spec/read_command.h"
#include "engine/spec/read_value.h"
#include "engine/spec/trackers.h"
#include "engine/spec/update_fields.h"

namespace trainctl::schema {

Json list_of(Json item, int length) {
  Json schema = {{"type", "array"}, {"items", std::move(item)}};
  if (length) schema["minItems"] = schema["maxItems"] = length;
  return schema;
}

Json reference(const char* name) { return {{"$ref", std::string("#/$defs/") + name}}; }

namespace {

bool is_finite_number(double v) { return v > -1e300 && v < 1e300; }

/// Writes a bound as JSON; whole numbers are written without ".0".
Json bound(double v) {
  return v == static_cast<double>(static_cast<int64_t>(v)) ? Json(static_cast<int64_t>(v)) : Json(v);
}

void add_range(Json& schema, const Field& field) {
  if (is_finite_number(field.min)) schema[field.min_open ? "exclusiveMinimum" : "minimum"] = bound(field.min);
  if (is_finite_number(field.max)) schema[field.max_open ? "exclusiveMaximum" : "maximum"] = bound(field.max);
}

Json number_schema(const char* type, const Field& field) {
  Json schema = {{"type", type}};
  add_range(schema, field);
  return schema;
}

/// The schema of an integer, which must fit an int64_t.
Json integer_schema(const Field& field) {
  Json schema = number_schema("integer", field);
  if (!is_finite_number(field.min)) schema["minimum"] = std::numeric_limits<int64_t>::min();
  if (!is_finite_number(field.max)) schema["maximum"] = std::numeric_limits<int64_t>::max();
  return schema;
}

/// The schema of a number, which must fit a 32-bit float.
Json float_schema(const Field& field) {
  Json schema = number_schema("number", field);
  if (!is_finite_number(field.min)) schema["minimum"] = std::numeric_limits<float>::lowest();
  if (!is_finite_number(field.max)) schema["maximum"] = std::numeric_limits<float>::max();
  return schema;
}

Json with_unit(const std::string& units, const Field& field) {
  const std::string number = R"(\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)";
  return {{"anyOf",
           {number_schema("number", field), {{"type", "string"}, {"pattern", "^" + number + " *(" + units + ")?$"}}}}};
}

/// Text that YAML writes without quotes may look like a number or a flag: `name: 2024`.
Json text_schema(const std::string& pattern) {
  return {{"type", {"string", "number", "boolean"}}, {"pattern", pattern}};
}

Json text_schema() {
  Json schema = text_schema(R"(^[^\u0000-\u001f\u007f]+$)");
  schema["maxLength"] = kMaxTextBytes;
  return schema;
}

/// A single text stands for a list with one entry, as in read_texts.
Json texts_schema() {
  const Json text = {{"type", {"string", "number", "boolean"}}, {"minLength", 1}};
  return {{"anyOf", {text, list_of(text)}}};
}

Json layer_list() {
  Json layers = list_of({{"$ref", "#/$defs/layer"}});
  layers["minItems"] = 1;
  layers["maxItems"] = kMaxLayers;
  return layers;
}

constexpr const char* kNoZeroByte = R"(^[^\u0000]*$)";

Json reference(const char* name) { return {{"$ref", std::string("#/$defs/") + name}}; }

/// The schema of a value that may also be given as an expression: a number, a flag or a choice.
Json or_expression(Json schema) { return {{"anyOf", {std::move(schema), reference("expression")}}}; }

Json constant_schema() { return {{"type", {"string", "number", "boolean"}}}; }

Json names_and_values(Json value) {
  return {{"type", "object"},
          {"propertyNames", {{"pattern", var_name_pattern()}}},
          {"additionalProperties", std::move(value)}};
}

Json module_schema() {
  Json optional = constant_schema();
  optional["type"].push_back("null");
  Json mapping = {
      {"type", "object"},
      {"properties", {{"args", names_and_values(optional)}, {"inputs", texts_schema()}, {"layers", layer_list()}}},
      {"required", {"layers"}},
      {"additionalProperties", false}};
  mapping["properties"]["args"]["description"] =
      "Arguments that expressions in the layers of the module use, and "
      "their defaults.";
  mapping["properties"]["inputs"]["description"] = "Names of the inputs; a single one named input if omitted.";
  return {{"anyOf", {layer_list(), mapping}}};
}

/// The schema of a list of numbers, each of which may be an expression.
Json numbers_list(Json item, int length = 0) { return list_of(or_expression(std::move(item)), length); }

std::vector<std::string> with_synonyms(const Field& field) {
  std::vector<std::string> words = field.choices;
  for (std::string& word : accepted_synonyms(field)) words.push_back(std::move(word));
  return words;
}

Json shares_schema() {
  return {{"type", "object"},
          {"minProperties", 1},
          {"additionalProperties", or_expression({{"type", "number"}, {"minimum", 0}})}};
}

Json per_dim_schema(const Field& field) {
  Json forms = {integer_schema(field), numbers_list(integer_schema(field))};
  if (!field.choices.empty()) forms.push_back({{"enum", field.choices}});
  return {{"anyOf", forms}};
}

Json short_or_mapping_schema(const Field& field) {
  Json mapping = section_schema(*field.section);
  if (field.stands_for.empty()) return mapping;
  for (const Field& one : field.section->fields)
    if (one.name == field.stands_for) return {{"anyOf", {value_schema(one), mapping}}};
  return mapping;
}

Json command_words_schema() {
  Json words = list_of(text_schema(kNoZeroByte));
  words["prefixItems"] = {text_schema(R"(^[^\u0000]+$)")};  // the program
  words["minItems"] = 1;
  return words;
}

Json paths_schema() {
  Json list = list_of(text_schema());
  list["minItems"] = 1;
  return {{"anyOf", {text_schema(), list}}};
}

Json losses_schema() {
  Json list = list_of(section_schema(auxiliary_loss_section()));
  list["maxItems"] = kMaxMetrics;
  return list;
}

Json metrics_schema() {
  Json list = list_of(reference("metric"));
  list["maxItems"] = kMaxMetrics;
  return {{"anyOf", {list, reference("metric")}}};
}

Json split_schema(const Field& field) {
  const Json share = or_expression({{"type", "number"}, {"minimum", 0}, {"maximum", 1}});
  return {{"anyOf",
           {{{"enum", field.choices}},
            {{"type", "object"},
             {"properties", {{"train", share}, {"validation", share}}},
             {"required", {"train", "validation"}},
             {"additionalProperties", false}}}}};
}

Json segments_schema() {
  Json list = list_of(section_schema(segment_section()));
  list["minItems"] = 1;
  return list;
}

Json strategies_schema() {
  Json cuts = list_of(numbers_list(integer_schema(cuts_field())));
  cuts["minItems"] = 1;
  return {{"type", "object"}, {"additionalProperties", cuts}};
}

Json share_changes_schema() {
  const Json step = or_expression({{"type", "integer"}, {"minimum", 0}});
  return list_of({{"type", "object"},
                  {"properties", {{"step", step}, {"ramp", step}, {"mix", shares_schema()}}},
                  {"required", {"step", "mix"}},
                  {"additionalProperties", false}});
}

Json named_paths_schema() { return {{"type", "object"}, {"additionalProperties", paths_schema()}}; }

Json number_list_or_number(const Field& field) {
  const Json list = numbers_list(float_schema(field), field.length);
  return field.length ? list : Json{{"anyOf", {list, float_schema(field)}}};
}

Json transforms_schema() {
  const Json list = list_of(reference("transform"));
  return {{"anyOf", {list, {{"type", "object"}, {"additionalProperties", list}}}}};
}

Json stages_schema() {
  return {{"type", "object"},
          {"additionalProperties", or_expression({{"type", "integer"}, {"minimum", 0}, {"maximum", kMaxRanks - 1}})}};
}

/// A mapping whose keys match `pattern`.
Json mapping_schema(const std::string& pattern, Json value) {
  return {{"type", "object"}, {"propertyNames", {{"pattern", pattern}}}, {"additionalProperties", std::move(value)}};
}

/// A mapping from fields of the sample, or sources of the data, with at least one of them.
Json by_sample_field(Json value) {
  return {{"type", "object"},
          {"minProperties", 1},
          {"propertyNames", {{"pattern", sample_field_pattern()}}},
          {"additionalProperties", std::move(value)}};
}

Json list_schema(const Field& field) {
  switch (field.kind) {
    case FieldKind::ints:
      return numbers_list(integer_schema(field), field.length);
    case FieldKind::numbers:
      return number_list_or_number(field);
    case FieldKind::int_lists:
      return list_of(numbers_list(integer_schema(field)));
    case FieldKind::words:
      return command_words_schema();
    case FieldKind::paths:
      return paths_schema();
    case FieldKind::losses:
      return losses_schema();
    case FieldKind::metrics:
      return metrics_schema();
    case FieldKind::layers:
      return layer_list();
    case FieldKind::groups:
      return groups_schema();
    case FieldKind::segments:
      return segments_schema();
    case FieldKind::share_changes:
      return share_changes_schema();
    case FieldKind::trackers:
      return {{"anyOf", {list_of(reference("tracker")), reference("tracker")}}};
    default:
      return texts_schema();
  }
}

Json named_values_schema(const Field& field) {
  switch (field.kind) {
    case FieldKind::variables:
      return mapping_schema(variable_name_pattern(), text_schema(kNoZeroByte));
    case FieldKind::sample_fields:
      return by_sample_field(texts_schema());
    case FieldKind::modules:
      return mapping_schema(layer_name_pattern(), module_schema());
    case FieldKind::values:
      return names_and_values(constant_schema());
    case FieldKind::stage_map:
      return stages_schema();
    case FieldKind::strategy_map:
      return strategies_schema();
    case FieldKind::sources:
      return by_sample_field(section_schema(source_section()));
    case FieldKind::shares:
      return shares_schema();
    default:
      return named_paths_schema();
  }
}

/// The schema of a field's value, not counting expressions in its place.
Json plain_schema(const Field& field) {
  switch (field.kind) {
    case FieldKind::flag:
      return {{"type", "boolean"}};
    case FieldKind::integer:
      return integer_schema(field);
    case FieldKind::number:
      return float_schema(field);
    case FieldKind::text:
      return text_schema();
    case FieldKind::choice:
      return {{"enum", with_synonyms(field)}};
    case FieldKind::per_dim:
      return per_dim_schema(field);
    case FieldKind::bytes:
      return with_unit("([KMGT]i?)?B", field);
    case FieldKind::seconds:
      return with_unit("ms|s|m|min|h", field);
    case FieldKind::section:
      return short_or_mapping_schema(field);
    case FieldKind::initial:
      return reference("initial");
    case FieldKind::transforms:
      return transforms_schema();
    case FieldKind::split:
      return split_schema(field);
    case FieldKind::ints:
    case FieldKind::numbers:
    case FieldKind::int_lists:
    case FieldKind::words:
    case FieldKind::names:
    case FieldKind::patterns:
    case FieldKind::any_names:
    case FieldKind::paths:
    case FieldKind::losses:
    case FieldKind::metrics:
    case FieldKind::layers:
    case FieldKind::groups:
    case FieldKind::segments:
    case FieldKind::share_changes:
    case FieldKind::trackers:
      return list_schema(field);
    case FieldKind::variables:
    case FieldKind::sample_fields:
    case FieldKind::modules:
    case FieldKind::values:
    case FieldKind::stage_map:
    case FieldKind::strategy_map:
    case FieldKind::sources:
    case FieldKind::shares:
    case FieldKind::named_paths:
      return named_values_schema(field);
  }
  return Json::object();
}

}  // namespace

Json value_schema(const Field& field) {
  switch (field.kind) {
    case FieldKind::flag:
    case FieldKind::integer:
    case FieldKind::number:
    case FieldKind::choice:
    case FieldKind::ints:
    case FieldKind::numbers:
    case FieldKind::int_lists:
    case FieldKind::per_dim:
    case FieldKind::bytes:
    case FieldKind::seconds:
      return or_expression(plain_schema(field));
    default:
      return plain_schema(field);
  }
}

}  // namespace trainctl::schema
