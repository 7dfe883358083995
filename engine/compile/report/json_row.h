// Makes JSON objects from names and values.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

namespace trainctl {

inline void append_fields(nlohmann::ordered_json::object_t&) {}
template <class Value, class... Rest>
void append_fields(nlohmann::ordered_json::object_t& to, const char* name, Value&& value, Rest&&... rest) {
  to.emplace_back(name, std::forward<Value>(value));
  append_fields(to, std::forward<Rest>(rest)...);
}

/// A JSON object from names, each followed by its value. Faster than an initializer list, which nlohmann::json first
/// turns into an array of arrays; reports have many rows.
template <class... Each>
nlohmann::ordered_json json_row(Each&&... each) {
  nlohmann::ordered_json::object_t fields;
  fields.reserve(sizeof...(each) / 2 + 1);
  append_fields(fields, std::forward<Each>(each)...);
  return fields;
}

}  // namespace trainctl
