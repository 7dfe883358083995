// Fields of a JSON object that another process has written, and that may therefore be damaged. nlohmann's own value() throws
// for a field of another type.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>

namespace trainctl {

/// `fallback` if the object has no such field, or one of another type. A number with a fraction is no integer, and
/// neither is one that T cannot hold.
template <class Json, class T>
T field_or(const Json& object, const char* name, T fallback) {
  const auto found = object.find(name);
  if (found == object.end()) return fallback;
  bool fits = false;
  if constexpr (std::is_same_v<T, bool>) {
    fits = found->is_boolean();
  } else if constexpr (std::is_integral_v<T>) {
    fits = found->is_number_unsigned()  ? std::in_range<T>(found->template get<uint64_t>())
           : found->is_number_integer() ? std::in_range<T>(found->template get<int64_t>())
                                        : false;
  } else if constexpr (std::is_floating_point_v<T>) {
    fits = found->is_number();
  } else {
    static_assert(std::is_same_v<T, std::string>);
    fits = found->is_string();
  }
  return fits ? found->template get<T>() : fallback;
}

template <class Json>
std::string field_or(const Json& object, const char* name, const char* fallback) {
  return field_or(object, name, std::string(fallback));
}

}  // namespace trainctl
