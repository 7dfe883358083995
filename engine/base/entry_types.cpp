// Looking up types, and how many inputs a layer takes.
#include "engine/base/entry_types.h"

#include <algorithm>

namespace trainctl {

bool EntryType::has_field(std::string_view field) const {
  return std::any_of(fields.begin(), fields.end(), [&](const Field& f) { return f.name == field; });
}

const EntryType* find_type(const std::vector<EntryType>& types, std::string_view name) {
  const auto at = std::find_if(types.begin(), types.end(), [&](const EntryType& t) { return t.name == name; });
  return at == types.end() ? nullptr : &*at;
}

std::vector<std::string> names_of(const std::vector<EntryType>& types) {
  std::vector<std::string> names;
  for (const EntryType& type : types) names.push_back(type.name);
  return names;
}

int output_count(const EntryType& type, const Attrs& attrs) {
  return type.num_outputs == nullptr ? 1 : std::clamp(type.num_outputs(attrs), 1, kMaxLayerOutputs);
}

InputCount input_count(const EntryType& type, const Attrs& attrs) {
  if (type.weight_field.empty()) return {type.min_inputs, type.max_inputs};
  const int count = attrs.has(type.weight_field) ? type.min_inputs : type.max_inputs;
  return {count, count};
}

std::string input_fault(const EntryType& type, const Attrs& attrs, int given) {
  const auto [least, most] = input_count(type, attrs);
  if (given >= least && given <= most) return "";
  std::string wanted = std::to_string(least);
  if (most != least) wanted += " to " + std::to_string(most);
  std::string fault = type.name + " takes " + wanted + (most == 1 ? " input" : " inputs");
  if (!type.weight_field.empty())
    fault += attrs.has(type.weight_field) ? " where '" + type.weight_field + "' gives it its own weight"
                                          : " where it has no '" + type.weight_field + "'";
  return fault + ", not " + std::to_string(given);
}

}  // namespace trainctl
