// The field table as JSON Schema, draft 2020-12, which editors use to complete and check. It refuses all that the
// parser refuses by looking at one section or layer alone. What it cannot say: names that refer to layers, sums and
// products of fields, shapes and plans (tests/spec/schema_agreement_test.cpp lists the kinds).
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/spec/dataset_fields.h"
#include "engine/spec/expression.h"
#include "engine/spec/fields.h"
#include "engine/spec/foreign_names.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/network.h"
#include "engine/spec/parse.h"
#include "engine/spec/read_command.h"
#include "engine/spec/read_value.h"
#include "engine/spec/trackers.h"
#include "engine/spec/update_fields.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

Json json(const Value& value) {
  return std::visit([](const auto& v) { return Json(v); }, value);
}

bool is_finite_number(double v) { return v > -1e300 && v < 1e300; }

/// Whole numbers without ".0".
Json bound(double v) {
  return v == static_cast<double>(static_cast<int64_t>(v)) ? Json(static_cast<int64_t>(v)) : Json(v);
}

void add_range(Json& schema, const Field& field) {
  if (is_finite_number(field.min)) schema[field.min_open ? "exclusiveMinimum" : "minimum"] = bound(field.min);
  if (is_finite_number(field.max)) schema[field.max_open ? "exclusiveMaximum" : "maximum"] = bound(field.max);
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

/// An integer fits an int64_t.
Json integer_schema(const Field& field) {
  Json schema = number_schema("integer", field);
  if (!is_finite_number(field.min)) schema["minimum"] = std::numeric_limits<int64_t>::min();
  if (!is_finite_number(field.max)) schema["maximum"] = std::numeric_limits<int64_t>::max();
  return schema;
}

/// A number fits a 32-bit float.
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

/// Same as in read_texts: one text stands for a list of one.
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

Json section_schema(const Section& section);
Json initial_schema();

/// Numbers, flags and choices, or an expression in their place.
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

Json groups_schema();

Json plain_schema(const Field& field);

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

/// Items of a list, each of which may be an expression.
Json numbers_list(Json item, int length = 0) { return list_of(or_expression(std::move(item)), length); }

std::vector<std::string> with_synonyms(const Field& field) {
  std::vector<std::string> words = field.choices;
  for (std::string& word : accepted_synonyms(field)) words.push_back(std::move(word));
  return words;
}

Json section_schema(const Section& section);

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
    case FieldKind::ints:
      return numbers_list(integer_schema(field), field.length);
    case FieldKind::numbers: {
      const Json list = numbers_list(float_schema(field), field.length);
      return field.length ? list : Json{{"anyOf", {list, float_schema(field)}}};
    }
    case FieldKind::int_lists:
      return list_of(numbers_list(integer_schema(field)));
    case FieldKind::per_dim:
      return per_dim_schema(field);
    case FieldKind::bytes:
      return with_unit("([KMGT]i?)?B", field);
    case FieldKind::seconds:
      return with_unit("ms|s|m|min|h", field);
    case FieldKind::section:
      return short_or_mapping_schema(field);
    case FieldKind::words:
      return command_words_schema();
    case FieldKind::variables:
      return {{"type", "object"},
              {"propertyNames", {{"pattern", variable_name_pattern()}}},
              {"additionalProperties", text_schema(kNoZeroByte)}};
    case FieldKind::initial:
      return reference("initial");
    case FieldKind::names:
    case FieldKind::patterns:
    case FieldKind::metric_names:
      return texts_schema();
    case FieldKind::paths:
      return paths_schema();
    case FieldKind::losses:
      return losses_schema();
    case FieldKind::metrics:
      return metrics_schema();
    case FieldKind::transforms:
      return {{"anyOf",
               {list_of(reference("transform")),
                {{"type", "object"}, {"additionalProperties", list_of(reference("transform"))}}}}};
    case FieldKind::sample_fields:
      return {{"type", "object"},
              {"minProperties", 1},
              {"propertyNames", {{"pattern", sample_field_pattern()}}},
              {"additionalProperties", texts_schema()}};
    case FieldKind::split:
      return split_schema(field);
    case FieldKind::layers:
      return layer_list();
    case FieldKind::modules:
      return {{"type", "object"},
              {"propertyNames", {{"pattern", layer_name_pattern()}}},
              {"additionalProperties", module_schema()}};
    case FieldKind::values:
      return names_and_values(constant_schema());
    case FieldKind::groups:
      return groups_schema();
    case FieldKind::segments:
      return segments_schema();
    case FieldKind::stage_map:
      return {
          {"type", "object"},
          {"additionalProperties", or_expression({{"type", "integer"}, {"minimum", 0}, {"maximum", kMaxRanks - 1}})}};
    case FieldKind::strategy_map:
      return strategies_schema();
    case FieldKind::sources:
      return {{"type", "object"},
              {"minProperties", 1},
              {"propertyNames", {{"pattern", sample_field_pattern()}}},
              {"additionalProperties", section_schema(source_section())}};
    case FieldKind::shares:
      return shares_schema();
    case FieldKind::share_changes:
      return share_changes_schema();
    case FieldKind::named_paths:
      return named_paths_schema();
    case FieldKind::trackers:
      return {{"anyOf", {list_of(reference("tracker")), reference("tracker")}}};
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

/// If the section is of that type, then it has what the type requires, and no fields of other types. Null where all
/// types have the same fields.
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

Json section_schema(const Section& section) {
  Json schema = object_schema(section.fields, &section, section.doc);
  const auto type = std::find_if(section.fields.begin(), section.fields.end(),
                                 [](const Field& field) { return field.name == "type"; });
  if (type == section.fields.end()) return schema;
  for (const std::string& value : type->choices)
    if (Json rule = if_then(section, *type, value); !rule.is_null()) schema["allOf"].push_back(std::move(rule));
  return schema;
}

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

/// A list of inputs of that length; a layer that takes one may leave it out, or write a name instead.
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

/// Groups of parameters: the fields of all optimizers but those that every group shares.
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

/// A type with its fields, or the type alone if it needs none.
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

/// The name of one that needs no field, or a mapping.
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

/// A name, 'command: PROGRAM', or a mapping, in which `command` stands for its type.
Json tracker_schema() {
  Json names = tracker_section().fields.front().choices;
  names.erase(std::find(names.begin(), names.end(), "command"));
  Json mapping = section_schema(tracker_section());
  mapping["required"] = Json::array();
  mapping["anyOf"] = {{{"required", {"type"}}}, {{"required", {"command"}}}};
  return {{"anyOf", {{{"enum", names}}, {{"type", "string"}, {"pattern", "^command: *[^ ]"}}, mapping}}};
}

}  // namespace

std::string job_schema() {
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "trainctl job"}};
  schema.update(section_schema(job_section()));
  schema["if"] = {{"required", {"command"}}};
  schema["then"] = kind_schema(job_section(), JobKind::command);
  schema["else"] = kind_schema(job_section(), JobKind::network);
  schema["$defs"] = {{"layer", layer_schema()},
                     {"transform", transform_schema()},
                     {"initial", initial_schema()},
                     {"metric", metric_schema()},
                     {"tracker", tracker_schema()},
                     {"expression",
                      {{"type", "string"},
                       {"pattern", R"(\$\{[^{}]*\})"},
                       {"description", "A value computed from vars and arguments: ${4*d}."}}}};
  return schema.dump(2) + "\n";
}

}  // namespace trainctl
