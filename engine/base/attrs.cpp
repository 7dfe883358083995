// Typed access to named constants, and how they print.
#include "engine/base/attrs.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

template <class T>
const T* get(const std::map<std::string, Value, std::less<>>& items, std::string_view name) {
  const auto it = items.find(name);
  if (it == items.end()) return nullptr;
  const T* value = std::get_if<T>(&it->second);
  if (!value)
    check_failed("attribute '" + std::string(name) + "' has another type: " + to_string(it->second),
                 std::source_location::current());
  return value;
}

[[noreturn]] void missing(std::string_view name) {
  check_failed("attribute '" + std::string(name) + "' is missing", std::source_location::current());
}

/// The shortest text that reads back as the same double and never looks like an integer.
std::string number_text(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  char text[40];
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  std::string result = text;
  if (result.find_first_of(".e") == std::string::npos) result += ".0";
  return result;
}

template <class T, class F>
std::string list_text(const std::vector<T>& values, F&& item) {
  std::string result = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) result += ", ";
    result += item(values[i]);
  }
  return result + "]";
}

struct Printer {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number_text(value); }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(const Ints& values) const { return format_list(values); }
  std::string operator()(const std::vector<Ints>& values) const { return list_text(values, format_list); }
  std::string operator()(const std::vector<double>& values) const { return list_text(values, number_text); }
};

}  // namespace

void Attrs::erase(std::string_view name) {
  if (const auto it = items_.find(name); it != items_.end()) items_.erase(it);
}

bool Attrs::flag(std::string_view name, bool otherwise) const {
  const bool* value = get<bool>(items_, name);
  return value ? *value : otherwise;
}

int64_t Attrs::integer(std::string_view name, int64_t otherwise) const {
  const int64_t* value = get<int64_t>(items_, name);
  return value ? *value : otherwise;
}

double Attrs::number(std::string_view name, double otherwise) const {
  const auto it = items_.find(name);
  if (it == items_.end()) return otherwise;
  if (const int64_t* value = std::get_if<int64_t>(&it->second)) return static_cast<double>(*value);
  return *get<double>(items_, name);
}

std::string Attrs::text(std::string_view name, std::string_view otherwise) const {
  const std::string* value = get<std::string>(items_, name);
  return value ? *value : std::string(otherwise);
}

Ints Attrs::ints(std::string_view name) const {
  const Ints* value = get<Ints>(items_, name);
  return value ? *value : Ints{};
}

std::vector<Ints> Attrs::int_lists(std::string_view name) const {
  const auto* value = get<std::vector<Ints>>(items_, name);
  return value ? *value : std::vector<Ints>{};
}

const std::vector<double>& Attrs::numbers(std::string_view name) const {
  static const std::vector<double> none;
  const auto* value = get<std::vector<double>>(items_, name);
  return value ? *value : none;
}

const Value* Attrs::find(std::string_view name) const {
  const auto it = items_.find(name);
  return it == items_.end() ? nullptr : &it->second;
}

int64_t Attrs::integer(std::string_view name) const {
  if (!has(name)) missing(name);
  return integer(name, 0);
}

double Attrs::number(std::string_view name) const {
  if (!has(name)) missing(name);
  return number(name, 0.0);
}

std::string to_string(const Value& value) { return std::visit(Printer{}, value); }

std::string to_string(const Attrs& attrs) {
  std::string result = "{";
  for (const auto& [name, value] : attrs) {
    if (result.size() > 1) result += ", ";
    result += name + ": " + to_string(value);
  }
  return result + "}";
}

}  // namespace trainctl
