// Values of templates: those of Python that chat templates use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace trainctl::jinja {

inline constexpr int kDeepestValue = 200;
inline constexpr size_t kMostText = size_t{64} << 20;  ///< bytes of a text
/// Throws EnvError if a text of that many bytes is too large.
void require_text_fits(size_t bytes);

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Value, Value>>;  ///< in the order of insertion

struct Arguments {
  List values;
  std::vector<std::pair<std::string, Value>> named;

  /// The argument at a position or by its name; null if it is not given.
  const Value* find(size_t at, std::string_view name) const;
};
using Function = std::function<Value(const Arguments&)>;

/// The value of a name that is not defined.
struct Undefined {
  std::string name;
};
struct None {};

class Value {
 public:
  Value() : data_(None{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(int value) : data_(int64_t{value}) {}
  Value(double value) : data_(value) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(const char* value) : data_(std::string(value)) {}
  /// Throws EnvError if the values are nested more than kDeepestValue levels deep, or one is a namespace.
  Value(List list);
  Value(Dict dict);
  Value(Function function) : data_(std::make_shared<Function>(std::move(function))) {}
  static Value from(const nlohmann::ordered_json& json);
  /// A dict whose attributes templates may set.
  static Value name_space(Dict dict);

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_text() const { return is<std::string>(); }
  bool is_list() const { return is<std::shared_ptr<List>>(); }
  bool is_dict() const { return is<std::shared_ptr<Dict>>(); }
  bool is_function() const { return is<std::shared_ptr<Function>>(); }
  bool is_integer() const { return is<int64_t>() || is<bool>(); }
  bool is_number() const { return is_integer() || is<double>(); }
  bool is_name_space() const { return is_name_space_; }

  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  const std::string& text() const { return std::get<std::string>(data_); }
  const List& list() const { return *std::get<std::shared_ptr<List>>(data_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  const Function& function() const { return *std::get<std::shared_ptr<Function>>(data_); }
  int64_t integer() const { return is<bool>() ? (std::get<bool>(data_) ? 1 : 0) : std::get<int64_t>(data_); }
  double number() const { return is<double>() ? std::get<double>(data_) : static_cast<double>(integer()); }

  /// The result of Python's bool().
  bool truth() const;
  /// The entry of a dict; null if there is none.
  const Value* find(const Value& key) const;
  /// Sets an entry of a dict, which all copies of the value share.
  void set(const Value& key, Value value);
  /// "str", "int", …, for errors.
  std::string_view type_name() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>, std::shared_ptr<Dict>,
               std::shared_ptr<Function>>
      data_;
  /// Levels of lists and dicts in a value.
  int depth_ = 0;
  bool is_name_space_ = false;

  /// Checks a value that becomes part of this one, and adds its depth.
  void enclose(const Value& part);
};

bool operator==(const Value& a, const Value& b);
/// Throws EnvError if the values have no order.
bool less(const Value& a, const Value& b);
/// The results of Python's str() and repr().
std::string to_text(const Value& value);
std::string representation(const Value& value);

/// The arguments of Python's json.dumps.
struct JsonStyle {
  int indent = -1;
  bool ascii = false, sorted = false;
  std::string item_separator, key_separator = ": ";  ///< item_separator empty: ", ", or "," with an indent
};
std::string to_json(const Value& value, const JsonStyle& style);

/// The elements of what a for statement takes: a list, the keys of a dict, the characters of a text, or nothing of
/// Undefined. Throws EnvError for others.
List elements(const Value& value);
/// A slice as in Python, [start:stop:step], where each may be None.
Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);

}  // namespace trainctl::jinja
