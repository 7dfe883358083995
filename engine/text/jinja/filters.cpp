// The filters, tests and global functions of chat templates, such as `trim`, `is defined` and `range`.
#include "engine/text/jinja/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <map>
#include <optional>

#include "engine/base/error.h"
#include "engine/text/jinja/text_functions.h"
#include "engine/text/unicode.h"

namespace trainctl::jinja {
namespace {

using Filter = Value (*)(const Value& value, const Arguments& arguments);
using Test = bool (*)(const Value& value, const Arguments& arguments);

const Value& needed(const Arguments& arguments, size_t at, std::string_view name) {
  const Value* value = arguments.find(at, name);
  if (value == nullptr) throw EnvError(fmt::format("the argument '{}' is missing", name));
  return *value;
}

std::string text_or(const Arguments& arguments, size_t at, std::string_view name, std::string otherwise) {
  const Value* value = arguments.find(at, name);
  return value == nullptr || value->is_none() ? std::move(otherwise) : to_text(*value);
}

bool truth_or(const Arguments& arguments, size_t at, std::string_view name, bool otherwise) {
  const Value* value = arguments.find(at, name);
  return value == nullptr ? otherwise : value->truth();
}

int64_t length_of(const Value& value) {
  if (value.is_text()) return static_cast<int64_t>(to_utf32(value.text()).size());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().size());
  return static_cast<int64_t>(elements(value).size());
}

/// Returns value.a.b or value[1] for a filter's attribute "a.b" or 1.
Value attribute_of(Value value, const Value& attribute) {
  if (attribute.is_integer()) return item_of(value, attribute);
  std::string_view rest = attribute.is_text() ? std::string_view(attribute.text()) : std::string_view();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    value = item_of(value, std::string(rest.substr(0, dot)));
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

Value to_json_text(const Value& value, const Arguments& arguments) {
  JsonStyle style;
  style.ascii = truth_or(arguments, 0, "ensure_ascii", false);
  if (const Value* indent = arguments.find(1, "indent"); indent != nullptr && indent->is_integer())
    style.indent = static_cast<int>(indent->integer());
  if (const Value* separators = arguments.find(2, "separators"); separators != nullptr && separators->is_list()) {
    if (separators->list().size() != 2) throw EnvError("tojson: separators must be two strings");
    style.item_separator = to_text(separators->list()[0]);
    style.key_separator = to_text(separators->list()[1]);
  }
  style.sorted = truth_or(arguments, 3, "sort_keys", false);
  return to_json(value, style);
}

Value default_value(const Value& value, const Arguments& arguments) {
  const bool also_false = truth_or(arguments, 1, "boolean", false);
  if (!value.is_undefined() && !(also_false && !value.truth())) return value;
  const Value* otherwise = arguments.find(0, "default_value");
  return otherwise != nullptr ? *otherwise : Value("");
}

Value join_filter(const Value& value, const Arguments& arguments) {
  const std::string separator = text_or(arguments, 0, "d", "");
  const Value* attribute = arguments.find(1, "attribute");
  std::string joined;
  bool is_first = true;
  for (const Value& element : elements(value)) {
    if (!std::exchange(is_first, false)) joined += separator;
    require_text_fits(joined.size());
    joined += to_text(attribute != nullptr ? attribute_of(element, *attribute) : element);
  }
  return joined;
}

/// The arguments after the first `count`.
Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest{{}, arguments.named};
  if (arguments.values.size() > count)
    rest.values.assign(arguments.values.begin() + static_cast<ptrdiff_t>(count), arguments.values.end());
  return rest;
}

/// The filter map: an attribute of each element, or a filter applied to each element.
Value map_filter(const Value& value, const Arguments& arguments) {
  List result;
  const Value* attribute = arguments.find(std::numeric_limits<size_t>::max(), "attribute");
  const Value* otherwise = arguments.find(std::numeric_limits<size_t>::max(), "default");
  if (attribute == nullptr && (arguments.values.empty() || !has_filter(to_text(arguments.values[0]))))
    throw EnvError("map needs an attribute, or the name of a filter that is supported");
  for (const Value& element : elements(value)) {
    if (attribute == nullptr) {
      result.push_back(apply_filter(arguments.values[0].text(), element, rest_of(arguments, 1)));
      continue;
    }
    Value found = attribute_of(element, *attribute);
    result.push_back(found.is_undefined() && otherwise != nullptr ? *otherwise : found);
  }
  return result;
}

/// The filters select, reject, selectattr and rejectattr. `of_attribute`: the test applies to an attribute of each
/// element, which the first argument names; `wanted`: elements that pass are kept, else those that fail.
Value select_elements(const Value& value, const Arguments& arguments, bool of_attribute, bool wanted) {
  List result;
  const size_t first = of_attribute ? 1 : 0;
  for (const Value& element : elements(value)) {
    const Value tested = of_attribute ? attribute_of(element, needed(arguments, 0, "attribute")) : element;
    bool holds = tested.truth();
    if (arguments.values.size() > first) {
      const std::string test = to_text(arguments.values[first]);
      if (!has_test(test)) throw EnvError("the test '" + test + "' is not supported");
      holds = apply_test(test, tested, rest_of(arguments, first + 1));
    }
    if (holds == wanted) result.push_back(element);
  }
  return result;
}

/// The key by which sort, unique, min and max compare.
Value sort_key(const Value& value, const Arguments& arguments, bool case_sensitive) {
  const Value* attribute = arguments.find(std::numeric_limits<size_t>::max(), "attribute");
  const Value key = attribute != nullptr ? attribute_of(value, *attribute) : value;
  return key.is_text() && !case_sensitive ? Value(lower_text(key.text())) : key;
}

Value sort_filter(const Value& value, const Arguments& arguments) {
  const bool reverse = truth_or(arguments, 0, "reverse", false);
  const bool case_sensitive = truth_or(arguments, 1, "case_sensitive", false);
  List list = elements(value);
  std::stable_sort(list.begin(), list.end(), [&](const Value& a, const Value& b) {
    const Value left = sort_key(a, arguments, case_sensitive), right = sort_key(b, arguments, case_sensitive);
    return reverse ? less(right, left) : less(left, right);
  });
  return list;
}

Value unique_filter(const Value& value, const Arguments& arguments) {
  List result, keys;
  for (const Value& element : elements(value)) {
    Value key = sort_key(element, arguments, truth_or(arguments, 0, "case_sensitive", false));
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    keys.push_back(std::move(key));
    result.push_back(element);
  }
  return result;
}

Value extreme(const Value& value, const Arguments& arguments, bool largest) {
  const List list = elements(value);
  if (list.empty()) return Undefined{largest ? "the maximum of an empty list" : "the minimum of an empty list"};
  const auto before = [&](const Value& a, const Value& b) {
    return less(sort_key(a, arguments, false), sort_key(b, arguments, false));
  };
  if (!largest) return *std::min_element(list.begin(), list.end(), before);
  const Value* best = &list[0];  // the first one among equals, as in Python's max
  for (const Value& element : list)
    if (before(*best, element)) best = &element;
  return *best;
}

Value to_integer(const Value& value, const Arguments& arguments) {
  if (value.is_integer()) return value.integer();
  if (value.is<double>() && std::abs(value.number()) < 9e18) return static_cast<int64_t>(value.number());
  const std::string text = strip_text(to_text(value), {});
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0' && std::abs(number) < 9e18) return static_cast<int64_t>(number);
  const Value* otherwise = arguments.find(0, "default");
  return otherwise != nullptr ? *otherwise : Value(0);
}

Value to_float(const Value& value, const Arguments& arguments) {
  if (value.is_number()) return value.number();
  const std::string text = strip_text(to_text(value), {});
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0') return number;
  const Value* otherwise = arguments.find(0, "default");
  return otherwise != nullptr ? *otherwise : Value(0.0);
}

/// Python's round(): an integer remains one, and the nearest decimal number is that of the exact value.
Value round_number(const Value& value, const Arguments& arguments) {
  const Value* precision = arguments.find(0, "precision");
  const std::string method = text_or(arguments, 1, "method", "common");
  if (!value.is_number()) throw EnvError("round needs a number");
  const int64_t digits = std::clamp<int64_t>(precision != nullptr ? precision->integer() : 0, -300, 300);
  if (method == "common" && digits >= 0) {
    if (value.is_integer()) return value.integer();
    return std::strtod(fmt::format("{:.{}f}", value.number(), digits).c_str(), nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(digits)), scaled = value.number() * scale;
  const double rounded = (method == "ceil"    ? std::ceil(scaled)
                          : method == "floor" ? std::floor(scaled)
                                              : std::nearbyint(scaled)) /
                         scale;
  if (method == "common" && value.is_integer()) return static_cast<int64_t>(rounded);
  return rounded;
}

Value reverse_filter(const Value& value, const Arguments&) {
  const Value none;
  return slice(value.is_text() ? value : Value(elements(value)), none, none, -1);
}

/// The filter indent: indents each line. The first line and blank lines are indented only if the arguments say so.
Value indent_text(const Value& value, const Arguments& arguments) {
  const Value* width = arguments.find(0, "width");
  const std::string blanks =
      width != nullptr && width->is_text()
          ? width->text()
          : std::string(static_cast<size_t>(width != nullptr ? std::clamp<int64_t>(width->integer(), 0, 1000) : 4),
                        ' ');
  const bool first = truth_or(arguments, 1, "first", false), blank_lines = truth_or(arguments, 2, "blank", false);
  std::string result;
  const std::string text = to_text(value);
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if ((at > 0 || first) && (end > at || blank_lines)) result += blanks;
    result += text.substr(at, end - at);
    if (end < text.size()) result += '\n';
    at = end + 1;
  }
  return result;
}

Value dict_items_of(const Value& value, const Arguments&) {
  if (value.is_undefined()) return List();
  if (!value.is_dict()) throw EnvError("items needs a dict");
  List items;
  for (const auto& [key, element] : value.dict()) items.emplace_back(List{key, element});
  return items;
}

Value dict_sort(const Value& value, const Arguments& arguments) {
  List items = dict_items_of(value, arguments).list();
  const bool case_sensitive = truth_or(arguments, 0, "case_sensitive", false);
  const size_t place = text_or(arguments, 1, "by", "key") == "value" ? 1 : 0;
  const auto key = [&](const Value& item) {
    const Value& of = item.list()[place];
    return of.is_text() && !case_sensitive ? Value(lower_text(of.text())) : of;
  };
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) { return less(key(a), key(b)); });
  if (truth_or(arguments, 2, "reverse", false)) std::reverse(items.begin(), items.end());
  return items;
}

Value sum_filter(const Value& value, const Arguments& arguments) {
  const Value* attribute = arguments.find(0, "attribute");
  double total = 0;
  bool whole = true;
  for (const Value& element : elements(value)) {
    const Value number = attribute != nullptr && !attribute->is_none() ? attribute_of(element, *attribute) : element;
    if (!number.is_number()) throw EnvError("sum needs numbers");
    total += number.number();
    whole = whole && number.is_integer();
  }
  return whole ? Value(static_cast<int64_t>(total)) : Value(total);
}

Value first_of(const Value& value, const Arguments&) {
  const List list = elements(value);
  return list.empty() ? Value(Undefined{"the first element of an empty list"}) : list.front();
}

Value last_of(const Value& value, const Arguments&) {
  const List list = elements(value);
  return list.empty() ? Value(Undefined{"the last element of an empty list"}) : list.back();
}

Value replace_filter(const Value& value, const Arguments& arguments) {
  const Value* most = arguments.find(2, "count");
  return replace_text(to_text(value), to_text(needed(arguments, 0, "old")), to_text(needed(arguments, 1, "new")),
                      most != nullptr && most->is_integer() ? most->integer() : -1);
}

Value trim(const Value& value, const Arguments& arguments) {
  const Value* characters = arguments.find(0, "chars");
  return strip_text(to_text(value),
                    characters == nullptr || characters->is_none() ? std::u32string() : to_utf32(to_text(*characters)));
}

Value absolute(const Value& value, const Arguments&) {
  if (!value.is_number()) throw EnvError("abs needs a number");
  return value.is_integer() ? Value(std::abs(value.integer())) : Value(std::abs(value.number()));
}

const std::map<std::string, Filter>& filters() {
  static const std::map<std::string, Filter> table = {
      {"abs", absolute},
      {"capitalize", [](const Value& v, const Arguments&) { return Value(capitalize(to_text(v))); }},
      {"count", [](const Value& v, const Arguments&) { return Value(length_of(v)); }},
      {"d", default_value},
      {"default", default_value},
      {"dictsort", dict_sort},
      {"first", first_of},
      {"float", to_float},
      {"indent", indent_text},
      {"int", to_integer},
      {"items", dict_items_of},
      {"join", join_filter},
      {"last", last_of},
      {"length", [](const Value& v, const Arguments&) { return Value(length_of(v)); }},
      {"list", [](const Value& v, const Arguments&) { return Value(elements(v)); }},
      {"lower", [](const Value& v, const Arguments&) { return Value(lower_text(to_text(v))); }},
      {"map", map_filter},
      {"max", [](const Value& v, const Arguments& a) { return extreme(v, a, true); }},
      {"min", [](const Value& v, const Arguments& a) { return extreme(v, a, false); }},
      {"reject", [](const Value& v, const Arguments& a) { return select_elements(v, a, false, false); }},
      {"rejectattr", [](const Value& v, const Arguments& a) { return select_elements(v, a, true, false); }},
      {"replace", replace_filter},
      {"reverse", reverse_filter},
      {"round", round_number},
      {"safe", [](const Value& v, const Arguments&) { return Value(to_text(v)); }},
      {"select", [](const Value& v, const Arguments& a) { return select_elements(v, a, false, true); }},
      {"selectattr", [](const Value& v, const Arguments& a) { return select_elements(v, a, true, true); }},
      {"sort", sort_filter},
      {"string", [](const Value& v, const Arguments&) { return Value(to_text(v)); }},
      {"sum", sum_filter},
      {"title", [](const Value& v, const Arguments&) { return Value(title_text(to_text(v))); }},
      {"tojson", to_json_text},
      {"trim", trim},
      {"unique", unique_filter},
      {"upper", [](const Value& v, const Arguments&) { return Value(upper_text(to_text(v))); }}};
  return table;
}

bool is_divisible(const Value& value, const Arguments& arguments) {
  const int64_t by = needed(arguments, 0, "num").is_integer() ? needed(arguments, 0, "num").integer() : 0;
  if (!value.is_integer() || by == 0) throw EnvError("divisibleby needs integers, and not 0");
  return value.integer() % by == 0;
}

bool is_parity(const Value& value, int64_t rest) {
  if (!value.is_integer()) throw EnvError("odd and even need an integer");
  return std::abs(value.integer() % 2) == rest;
}

const std::map<std::string, Test>& tests() {
  constexpr Test equal = [](const Value& v, const Arguments& a) { return v == needed(a, 0, "other"); };
  constexpr Test unequal = [](const Value& v, const Arguments& a) { return !(v == needed(a, 0, "other")); };
  constexpr Test lower = [](const Value& v, const Arguments& a) { return less(v, needed(a, 0, "other")); };
  constexpr Test greater = [](const Value& v, const Arguments& a) { return less(needed(a, 0, "other"), v); };
  constexpr Test at_most = [](const Value& v, const Arguments& a) { return !less(needed(a, 0, "other"), v); };
  constexpr Test at_least = [](const Value& v, const Arguments& a) { return !less(v, needed(a, 0, "other")); };
  static const std::map<std::string, Test> table = {
      {"!=", unequal},
      {"<", lower},
      {"<=", at_most},
      {"==", equal},
      {">", greater},
      {">=", at_least},
      {"boolean", [](const Value& v, const Arguments&) { return v.is<bool>(); }},
      {"callable", [](const Value& v, const Arguments&) { return v.is_function(); }},
      {"defined", [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"divisibleby", is_divisible},
      {"eq", equal},
      {"equalto", equal},
      {"even", [](const Value& v, const Arguments&) { return is_parity(v, 0); }},
      {"false", [](const Value& v, const Arguments&) { return v.is<bool>() && !v.truth(); }},
      {"float", [](const Value& v, const Arguments&) { return v.is<double>(); }},
      {"ge", at_least},
      {"greaterthan", greater},
      {"gt", greater},
      {"in", [](const Value& v, const Arguments& a) { return contains(needed(a, 0, "seq"), v); }},
      {"integer", [](const Value& v, const Arguments&) { return v.is<int64_t>(); }},
      {"iterable",
       [](const Value& v, const Arguments&) { return v.is_list() || v.is_dict() || v.is_text() || v.is_undefined(); }},
      {"le", at_most},
      {"lessthan", lower},
      {"lower", [](const Value& v, const Arguments&) { return lower_text(to_text(v)) == to_text(v); }},
      {"lt", lower},
      {"mapping", [](const Value& v, const Arguments&) { return v.is_dict() && !v.is_name_space(); }},
      {"ne", unequal},
      {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
      {"number", [](const Value& v, const Arguments&) { return v.is_number(); }},
      {"odd", [](const Value& v, const Arguments&) { return is_parity(v, 1); }},
      {"sameas",
       [](const Value& v, const Arguments& a) {
         const Value& other = needed(a, 0, "other");
         return v.type_name() == other.type_name() && v == other;
       }},
      {"sequence",
       [](const Value& v, const Arguments&) { return v.is_list() || v.is_dict() || v.is_text() || v.is_undefined(); }},
      {"string", [](const Value& v, const Arguments&) { return v.is_text(); }},
      {"true", [](const Value& v, const Arguments&) { return v.is<bool>() && v.truth(); }},
      {"undefined", [](const Value& v, const Arguments&) { return v.is_undefined(); }},
      {"upper", [](const Value& v, const Arguments&) { return upper_text(to_text(v)) == to_text(v); }}};
  return table;
}

/// The global function range, as in Python.
Value range(const Arguments& arguments) {
  constexpr size_t kMost = 100'000;
  for (const Value& value : arguments.values)
    if (!value.is_integer()) throw EnvError("range needs integers");
  const auto& values = arguments.values;
  if (values.empty() || values.size() > 3) throw EnvError("range needs one to three integers");
  const int64_t start = values.size() > 1 ? values[0].integer() : 0, stop = values[values.size() > 1 ? 1 : 0].integer(),
                step = values.size() > 2 ? values[2].integer() : 1;
  if (step == 0) throw EnvError("the step of a range is 0");
  List list;
  for (int64_t at = start; step > 0 ? at < stop : at > stop; at += step) {
    if (list.size() == kMost) throw EnvError("a range has more than 100,000 numbers");
    list.emplace_back(at);
  }
  return list;
}

Value dict_of(const Arguments& arguments, bool is_name_space) {
  Dict dict;
  for (const Value& value : arguments.values) {
    if (!value.is_dict()) throw EnvError("namespace and dict take keyword arguments");
    dict.insert(dict.end(), value.dict().begin(), value.dict().end());
  }
  for (const auto& [name, value] : arguments.named) dict.emplace_back(Value(name), value);
  return is_name_space ? Value::name_space(std::move(dict)) : Value(std::move(dict));
}

Value time_text(const Arguments& arguments) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 512> text{};
  const std::string format = to_text(needed(arguments, 0, "format"));
  return std::string(text.data(), std::strftime(text.data(), text.size(), format.c_str(), &local));
}

}  // namespace

bool has_filter(const std::string& name) { return filters().contains(name); }
bool has_test(const std::string& name) { return tests().contains(name); }

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  return filters().at(name)(value, arguments);
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  return tests().at(name)(value, arguments);
}

Value item_of(const Value& value, const Value& key) {
  if (value.is_dict()) {
    const Value* found = value.find(key);
    return found != nullptr ? *found : Value(Undefined{to_text(key)});
  }
  if ((value.is_list() || value.is_text()) && key.is_integer()) {
    const List list = value.is_list() ? List() : elements(value);
    const List& all = value.is_list() ? value.list() : list;
    const int64_t at = key.integer() < 0 ? key.integer() + static_cast<int64_t>(all.size()) : key.integer();
    if (at >= 0 && at < static_cast<int64_t>(all.size())) return all[static_cast<size_t>(at)];
  }
  return Undefined{to_text(key)};
}

bool contains(const Value& container, const Value& value) {
  if (container.is_text()) {
    if (!value.is_text()) throw EnvError("'in' on a string needs a string on its left");
    return container.text().find(value.text()) != std::string::npos;
  }
  if (container.is_dict()) return container.find(value) != nullptr;
  const List list = elements(container);
  return std::find(list.begin(), list.end(), value) != list.end();
}

const Dict& globals() {
  static const Dict all = {
      {"range", Function(range)},
      {"namespace", Function([](const Arguments& a) { return dict_of(a, true); })},
      {"dict", Function([](const Arguments& a) { return dict_of(a, false); })},
      {"strftime_now", Function(time_text)},
      {"raise_exception", Function([](const Arguments& a) -> Value {
         throw EnvError("the template refuses the conversation: " + to_text(needed(a, 0, "message")));
       })}};
  return all;
}

}  // namespace trainctl::jinja
