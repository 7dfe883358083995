// A validator for as much of JSON Schema as trainctl schema writes. It knows no other keyword: a new one fails.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>

namespace trainctl {

class SchemaValidator {
 public:
  explicit SchemaValidator(nlohmann::json root) : root_(std::move(root)) {}

  bool accepts(const nlohmann::json& value) const { return accepts(root_, value); }

 private:
  using Json = nlohmann::json;

  bool accepts(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    for (const auto& [keyword, rule] : schema.items())
      if (!holds(schema, keyword, rule, value)) return false;
    return true;
  }

  bool holds(const Json& schema, const std::string& keyword, const Json& rule, const Json& value) const {
    static const std::set<std::string> kNotes = {"$schema", "$defs", "title", "description", "default", "then", "else"};
    if (kNotes.contains(keyword)) return true;
    if (keyword == "$ref") return accepts(root_.at(Json::json_pointer(rule.get<std::string>().substr(1))), value);
    if (keyword == "type") return has_type(rule, value);
    if (keyword == "const") return value == rule;
    if (keyword == "enum") return std::find(rule.begin(), rule.end(), value) != rule.end();
    if (keyword == "allOf") return count(rule, value) == rule.size();
    if (keyword == "anyOf") return count(rule, value) > 0;
    if (keyword == "oneOf") return count(rule, value) == 1;
    if (keyword == "if") {
      const char* branch = accepts(rule, value) ? "then" : "else";
      return !schema.contains(branch) || accepts(schema[branch], value);
    }
    if (value.is_number() && keyword == "minimum") return value >= rule;
    if (value.is_number() && keyword == "maximum") return value <= rule;
    if (value.is_number() && keyword == "exclusiveMinimum") return value > rule;
    if (value.is_number() && keyword == "exclusiveMaximum") return value < rule;
    if (value.is_string() && keyword == "minLength") return value.get<std::string>().size() >= rule;
    if (value.is_string() && keyword == "maxLength") return value.get<std::string>().size() <= rule;
    if (value.is_string() && keyword == "pattern") return matches(rule, value);
    if (value.is_array() && holds_of_list(schema, keyword, rule, value)) return true;
    if (value.is_object() && holds_of_object(schema, keyword, rule, value)) return true;
    static const std::set<std::string> kOfOthers = {"minimum",
                                                    "maximum",
                                                    "exclusiveMinimum",
                                                    "exclusiveMaximum",
                                                    "minLength",
                                                    "maxLength",
                                                    "pattern",
                                                    "items",
                                                    "minItems",
                                                    "maxItems",
                                                    "prefixItems",
                                                    "required",
                                                    "additionalProperties",
                                                    "properties",
                                                    "propertyNames"};
    if (!kOfOthers.contains(keyword)) throw std::logic_error("the validator does not know '" + keyword + "'");
    return !(value.is_array() && is_of_lists(keyword)) && !(value.is_object() && is_of_objects(keyword));
  }

  static bool is_of_lists(const std::string& keyword) { return keyword.ends_with("tems"); }
  static bool is_of_objects(const std::string& keyword) {
    return keyword == "required" || keyword.find("ropert") != std::string::npos;
  }

  bool holds_of_list(const Json& schema, const std::string& keyword, const Json& rule, const Json& list) const {
    if (keyword == "minItems") return list.size() >= rule;
    if (keyword == "maxItems") return list.size() <= rule;
    const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < list.size(); ++i) {
      if (keyword == "prefixItems" && i < prefix && !accepts(rule[i], list[i])) return false;
      if (keyword == "items" && i >= prefix && !accepts(rule, list[i])) return false;
    }
    return is_of_lists(keyword);
  }

  bool holds_of_object(const Json& schema, const std::string& keyword, const Json& rule, const Json& object) const {
    if (keyword == "required")
      return std::all_of(rule.begin(), rule.end(), [&](const Json& name) { return object.contains(name); });
    const Json none = Json::object(), &properties = schema.contains("properties") ? schema["properties"] : none;
    for (const auto& [name, value] : object.items()) {
      if (keyword == "propertyNames" && !accepts(rule, Json(name))) return false;
      if (keyword == "properties" && rule.contains(name) && !accepts(rule[name], value)) return false;
      if (keyword == "additionalProperties" && !properties.contains(name) && !accepts(rule, value)) return false;
    }
    return is_of_objects(keyword);
  }

  size_t count(const Json& schemas, const Json& value) const {
    return static_cast<size_t>(
        std::count_if(schemas.begin(), schemas.end(), [&](const Json& schema) { return accepts(schema, value); }));
  }

  static bool matches(const std::string& pattern, const std::string& text) {
    return std::regex_search(text, std::regex(pattern));
  }

  static bool has_type(const Json& type, const Json& value) {
    if (type.is_array())
      return std::any_of(type.begin(), type.end(), [&](const Json& one) { return has_type(one, value); });
    if (type == "integer") return value.is_number_integer();  // the standard counts 1.0, the parser does not
    return type == "number"    ? value.is_number()
           : type == "string"  ? value.is_string()
           : type == "boolean" ? value.is_boolean()
           : type == "array"   ? value.is_array()
           : type == "object"  ? value.is_object()
           : type == "null"    ? value.is_null()
                               : throw std::logic_error("unknown type " + type.dump());
  }

  Json root_;
};

}  // namespace trainctl
