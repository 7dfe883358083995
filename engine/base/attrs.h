// Named constants of a layer or an op: {units: 512, bias: true}. Plain data, kept sorted by name so
// that printing is stable.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trainctl {

using Ints = std::vector<int64_t>;
using Value = std::variant<bool, int64_t, double, std::string, Ints, std::vector<Ints>, std::vector<double>>;

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Value>> items) : items_(items) {}

  bool has(std::string_view name) const { return items_.find(name) != items_.end(); }
  void set(std::string_view name, Value value) { items_.insert_or_assign(std::string(name), std::move(value)); }
  void erase(std::string_view name);

  /// The value, or `otherwise` if the name is absent. A present value of another type is our bug
  /// (an int64_t is accepted for a double).
  bool flag(std::string_view name, bool otherwise = false) const;
  int64_t integer(std::string_view name, int64_t otherwise) const;
  double number(std::string_view name, double otherwise) const;
  std::string text(std::string_view name, std::string_view otherwise = "") const;
  /// The list, or an empty one where the name is absent.
  Ints ints(std::string_view name) const;
  std::vector<Ints> int_lists(std::string_view name) const;
  const std::vector<double>& numbers(std::string_view name) const;
  /// The value, or null where the name is absent.
  const Value* find(std::string_view name) const;

  /// The value; a name that is absent is our bug.
  int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;

  bool empty() const { return items_.empty(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  friend bool operator==(const Attrs&, const Attrs&) = default;

 private:
  std::map<std::string, Value, std::less<>> items_;
};

/// "512", "true", "[1, 28, 28]", "0.5".
std::string to_string(const Value& value);

/// "{bias: true, units: 512}".
std::string to_string(const Attrs& attrs);

}  // namespace trainctl
