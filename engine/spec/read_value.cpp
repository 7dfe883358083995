// Reads one YAML value as the kind that a field requires.
#include "engine/spec/read_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/spec/foreign_names.h"

namespace trainctl {
namespace {

/// An integer of any size: digits with an optional sign.
bool is_integer_text(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

constexpr double kMaxBytes = 9e18, kMaxSeconds = 1e8;

struct Unit {
  const char* name;
  double factor;
};

/// Parses "1.5GB" with the given units; a bare number has the factor 1.
std::optional<double> parse_with_unit(const std::string& text, const std::vector<Unit>& units) {
  const size_t at = text.find_last_of("0123456789.");
  if (at == std::string::npos) return {};
  const std::optional<double> number = parse_number(text.substr(0, at + 1));
  std::string unit = text.substr(at + 1);
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size() : unit.find_first_not_of(' '));
  if (!number) return {};
  if (unit.empty()) return number;
  for (const Unit& u : units)
    if (unit == u.name) return *number * u.factor;
  return {};
}

std::optional<double> parse_bytes(const std::string& text) {
  static const std::vector<Unit> kUnits = {
      {"B", 1},           {"KB", 1e3},           {"MB", 1e6},
      {"GB", 1e9},        {"TB", 1e12},          {"KiB", 1024.0},
      {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
  };
  return parse_with_unit(text, kUnits);
}

std::optional<double> parse_seconds(const std::string& text) {
  static const std::vector<Unit> kUnits = {{"s", 1}, {"ms", 1e-3}, {"m", 60}, {"min", 60}, {"h", 3600}};
  return parse_with_unit(text, kUnits);
}

/// Reads values for one field; knows its range and where to report errors.
class ValueReader {
 public:
  ValueReader(const Field& field, Problems& problems) : field_(field), problems_(problems) {}

  std::optional<Value> read(const YamlNode& node, const std::string& path) {
    switch (field_.kind) {
      case FieldKind::flag:
        return flag(node, path);
      case FieldKind::integer:
        return wrap(integer(node, path));
      case FieldKind::number:
        return wrap(number(node, path));
      case FieldKind::text:
        return text(node, path);
      case FieldKind::choice:
        return choice(node, path);
      case FieldKind::ints:
        return wrap(list<int64_t>(node, path, [&](const YamlNode& n, const std::string& p) { return integer(n, p); }));
      case FieldKind::numbers:
        return numbers(node, path);
      case FieldKind::int_lists:
        return wrap(read_int_lists(node, field_, path, problems_));
      case FieldKind::per_dim:
        return per_dim(node, path);
      case FieldKind::bytes:
        return bytes(node, path);
      case FieldKind::seconds:
        return seconds(node, path);
      default:
        check(false, "a field of type " + kind_text(field_) + " is not a single value");
    }
    return {};
  }

 private:
  template <class T>
  static std::optional<Value> wrap(std::optional<T> value) {
    return value ? std::optional<Value>(std::move(*value)) : std::nullopt;
  }

  std::nullopt_t wrong(const YamlNode& node, const std::string& path, const std::string& expected,
                       const std::string& hint = {}) {
    problems_.add(node.pos, path, "must be " + expected + ", not " + describe(node), hint);
    return std::nullopt;
  }

  std::optional<Value> flag(const YamlNode& node, const std::string& path) {
    if (node.is_scalar() && !node.quoted) {
      if (node.text == "true" || node.text == "True" || node.text == "TRUE") return Value(true);
      if (node.text == "false" || node.text == "False" || node.text == "FALSE") return Value(false);
    }
    return wrong(node, path, "true or false", flag_hint(node));
  }

  /// Returns a hint if the text is a word for true or false in another YAML version or programming language.
  static std::string flag_hint(const YamlNode& node) {
    if (!node.is_scalar()) return "";
    const std::string word = lower_case(node.text);
    for (const char* yes : {"yes", "on", "y", "1", "true"})
      if (word == yes) return "write true";
    for (const char* no : {"no", "off", "n", "0", "false"})
      if (word == no) return "write false";
    return "";
  }

  std::optional<int64_t> integer(const YamlNode& node, const std::string& path) {
    const std::optional<int64_t> value = node.is_scalar() && !node.quoted ? parse_integer(node.text) : std::nullopt;
    if (!value) {
      if (node.is_scalar() && !node.quoted && is_integer_text(node.text)) return wrong(node, path, integer_range());
      return wrong(node, path, "an integer", integer_hint(node));
    }
    if (!in_range(node, static_cast<double>(*value), path)) return {};
    return value;
  }

  /// Describes the range of an integer field, for a value that no int64_t holds.
  std::string integer_range() const {
    using Limits = std::numeric_limits<int64_t>;
    const bool has_min = std::isfinite(field_.min), has_max = std::isfinite(field_.max);
    return "an integer from " + std::to_string(has_min ? static_cast<int64_t>(field_.min) : Limits::min()) + " to " +
           std::to_string(has_max ? static_cast<int64_t>(field_.max) : Limits::max());
  }

  /// Returns a hint for a text such as "1e9", "1.0", "10k" or "1,000", whose value is a whole number but which is not
  /// written as an integer.
  std::string integer_hint(const YamlNode& node) const {
    if (!node.is_scalar()) return "";
    if (node.quoted) return parse_integer(node.text) ? "remove the quotes" : "";
    std::string text = node.text;
    std::erase_if(text, [](char c) { return c == '_' || c == '\'' || c == ','; });
    double factor = 1;
    if (const size_t unit = std::string_view("kKmMbB").find(text.empty() ? ' ' : text.back());
        unit != std::string_view::npos && text.size() > 1) {
      factor = std::pow(1000.0, static_cast<double>(unit / 2 + 1));
      text.pop_back();
    }
    const std::optional<double> number = parse_number(text);
    if (!number || std::abs(*number * factor) > 1e15) return whole_number_hint();
    const double value = *number * factor, below = std::floor(value);
    if (value != below)
      return "write a whole number: " + std::to_string(static_cast<int64_t>(below)) + " or " +
             std::to_string(static_cast<int64_t>(below) + 1);
    return node.computed ? "/ returns a float: write // for an integer"
                         : "write " + std::to_string(static_cast<int64_t>(value));
  }

  /// Returns the hint for a word in place of an integer.
  std::string whole_number_hint() const {
    const auto* usual = field_.fallback ? std::get_if<int64_t>(&*field_.fallback) : nullptr;
    const int64_t least = std::isfinite(field_.min) ? static_cast<int64_t>(field_.min) : 0;
    return "write a whole number, e.g. " +
           std::to_string(usual != nullptr && *usual > 0 ? *usual : std::max<int64_t>(1, least));
  }

  /// Returns a hint for a percentage: "10%" is written 0.1.
  static std::string percent_hint(const YamlNode& node) {
    if (!node.is_scalar() || !node.text.ends_with('%')) return "";
    const std::optional<double> value = parse_number(node.text.substr(0, node.text.size() - 1));
    return value ? "write " + to_string(Value(*value / 100)) : "";
  }

  std::optional<double> number(const YamlNode& node, const std::string& path) {
    const std::optional<double> value = node.is_scalar() && !node.quoted ? parse_number(node.text) : std::nullopt;
    if (!value) {
      const bool quoted_number = node.is_scalar() && node.quoted && parse_number(node.text);
      return wrong(node, path, "a number", quoted_number ? "remove the quotes" : percent_hint(node));
    }
    // The engine computes in 32 bits.
    if (std::abs(*value) > std::numeric_limits<float>::max()) {
      problems_.add(node.pos, path, "must be a number in the range of a 32-bit float, not " + node.text,
                    "at most 3.4e38");
      return {};
    }
    if (!in_range(node, *value, path)) return {};
    return value;
  }

  /// Returns a hint that shows a list of words as the single text that is required.
  static std::string joined_hint(const YamlNode& node) {
    std::vector<std::string> words;
    for (const YamlNode& item : node.items)
      if (item.is_scalar()) words.push_back(item.text);
    const bool is_short = !words.empty() && words.size() <= 4 && words.size() == node.items.size();
    return is_short ? "write \"" + join(words) + "\"" : "";
  }

  std::optional<Value> text(const YamlNode& node, const std::string& path) {
    if (!node.is_scalar()) return wrong(node, path, "text", joined_hint(node));
    if (node.text.empty()) return wrong(node, path, "text that is not empty");
    if (node.text.size() > kMaxTextBytes)
      return wrong(node, path, "text of at most " + std::to_string(kMaxTextBytes) + " bytes");
    if (find_unprintable(node.text) != std::string::npos) return wrong(node, path, "text without control characters");
    return Value(node.text);
  }

  /// Returns a hint with the choice that other tools call `word`, or else with the most similar choice.
  std::string choice_hint(const std::string& word) const {
    const auto is_choice = [&](std::string_view name) {
      return std::find(field_.choices.begin(), field_.choices.end(), name) != field_.choices.end();
    };
    for (const ForeignName* name : find_foreign(word)) {
      const bool is_type = name->kind != NameKind::field && name->kind != NameKind::layer_field;
      if (is_type && (is_choice(name->ours) || (name->ours.empty() && is_choice_of(name->kind)))) return hint_of(*name);
    }
    if (const std::string called = call_hint(word); !called.empty()) return called;
    if (const std::string same = same_name(word, field_.choices); !same.empty()) return "write " + same;
    return did_you_mean(word, field_.choices);
  }

  /// Returns a hint for a text such as "Adam(lr=0.1)", with which other tools make an object of a type.
  std::string call_hint(const std::string& word) const {
    const size_t bracket = word.find('(');
    if (bracket == std::string::npos) return "";
    std::string type = word.substr(0, bracket);
    type.erase(0, type.rfind('.') + 1);
    type = lower_case(std::move(type));
    const bool is_choice = std::find(field_.choices.begin(), field_.choices.end(), type) != field_.choices.end();
    return is_choice ? "a type has its fields in a mapping: {type: " + type + ", FIELD: VALUE}" : "";
  }

  /// Returns whether the field chooses among all things of this kind.
  bool is_choice_of(NameKind kind) const {
    switch (kind) {
      case NameKind::loss:
        return field_.choices == names_of(loss_types());
      case NameKind::optimizer:
        return field_.choices == names_of(optimizer_types());
      case NameKind::dataset:
        return field_.name == "type" &&
               std::find(field_.choices.begin(), field_.choices.end(), "tokens") != field_.choices.end();
      default:
        return false;
    }
  }

  std::optional<Value> choice(const YamlNode& node, const std::string& path) {
    if (!node.is_scalar()) return wrong(node, path, "one of " + join(field_.choices));
    for (const std::string& allowed : field_.choices)
      if (node.text == allowed) return Value(node.text);
    if (const std::string meant = accepted_synonym(field_, node.text); !meant.empty()) return Value(meant);
    const bool has_auto = std::find(field_.choices.begin(), field_.choices.end(), "auto") != field_.choices.end();
    return wrong(node, path, "one of " + join(field_.choices),
                 node.text == "true" && has_auto ? "write auto" : choice_hint(node.text));
  }

  /// Returns a hint for a single value in place of a list: for 8 or 8x8 it suggests [8, 8]; missing numbers are those
  /// of the default.
  template <class T>
  std::string list_hint(const YamlNode& node) const {
    if (!node.is_scalar()) return "";
    std::vector<std::string> items;
    std::string rest = node.text;
    for (size_t end; (end = rest.find_first_of("xX*")) != std::string::npos; rest.erase(0, end + 1))
      items.push_back(rest.substr(0, end));
    items.push_back(rest);
    for (const std::string& item : items)
      if (!parse_number(item)) return "";
    const auto* usual = field_.fallback ? std::get_if<std::vector<T>>(&*field_.fallback) : nullptr;
    while (field_.length > 0 && items.size() < static_cast<size_t>(field_.length))
      items.push_back(usual != nullptr && items.size() < usual->size() ? to_string(Value((*usual)[items.size()]))
                                                                       : items.front());
    return "write [" + join(items) + "]";
  }

  template <class T, class F>
  std::optional<std::vector<T>> list(const YamlNode& node, const std::string& path, F&& item) {
    const std::string kind = std::is_same_v<T, int64_t> ? "integers" : "numbers";
    const std::string expected =
        field_.length ? "a list of " + std::to_string(field_.length) + " " + kind : "a list of " + kind;
    if (!node.is_list()) return wrong(node, path, expected, list_hint<T>(node));
    if (field_.length && node.items.size() != static_cast<size_t>(field_.length)) {
      problems_.add(node.pos, path, "must be " + expected + ", not of " + std::to_string(node.items.size()));
      return {};
    }
    std::vector<T> values;
    bool good = true;
    for (size_t i = 0; i < node.items.size(); ++i) {
      const std::optional<T> value = item(node.items[i], at_index(path, i));
      good = good && value;
      if (value) values.push_back(*value);
    }
    if (!good) return {};
    return values;
  }

  std::optional<Value> numbers(const YamlNode& node, const std::string& path) {
    if (node.is_scalar() && field_.length == 0) {
      const std::optional<double> one = number(node, path);
      return one ? std::optional<Value>(std::vector<double>{*one}) : std::nullopt;
    }
    return wrap(list<double>(node, path, [&](const YamlNode& n, const std::string& p) { return number(n, p); }));
  }

  std::string per_dim_hint(const std::string& word) const {
    const ForeignName* known = find_foreign(NameKind::value, word);
    if (known != nullptr && parse_integer(std::string(known->ours))) return hint_of(*known);
    return did_you_mean(word, field_.choices);
  }

  std::optional<Value> per_dim(const YamlNode& node, const std::string& path) {
    const auto one = [&](const YamlNode& n, const std::string& p) { return integer(n, p); };
    if (node.is_list()) return wrap(list<int64_t>(node, path, one));
    if (!node.is_scalar() || parse_integer(node.text)) {
      const std::optional<int64_t> value = one(node, path);
      return value ? std::optional<Value>(Ints{*value}) : std::nullopt;
    }
    for (const std::string& word : field_.choices)
      if (node.text == word) return Value(word);
    const std::string words = field_.choices.empty() ? "" : ", or " + join(field_.choices, " or ");
    return wrong(node, path, "an integer or a list of integers" + words, per_dim_hint(node.text));
  }

  std::optional<Value> bytes(const YamlNode& node, const std::string& path) {
    const std::optional<double> value = node.is_scalar() ? parse_bytes(node.text) : std::nullopt;
    if (!value) return wrong(node, path, "a number of bytes", "e.g. 25GB, 512MiB or 1048576");
    if (std::abs(*value) > kMaxBytes) return wrong(node, path, "less than 8 EiB");
    constexpr double kLeastMemory = 1024;  // for a smaller number of bytes, the user has probably forgotten the unit
    if (field_.name == "max_memory" && *value > 0 && *value < kLeastMemory)
      return wrong(node, path, "at least 1 KiB",
                   parse_number(node.text) ? "a number alone is in bytes: write " + node.text + "GB" : "");
    if (!in_range(node, *value, path)) return {};
    // Integers past 2^53 must not go through a double.
    if (const std::optional<int64_t> exact = parse_integer(node.text)) return Value(*exact);
    return Value(static_cast<int64_t>(*value));
  }

  std::optional<Value> seconds(const YamlNode& node, const std::string& path) {
    const std::optional<double> value = node.is_scalar() ? parse_seconds(node.text) : std::nullopt;
    if (!value) return wrong(node, path, "a time", "e.g. 10s, 2m, 500ms or 30 (seconds)");
    if (std::abs(*value) > kMaxSeconds) return wrong(node, path, "a time of at most 100000000 seconds");
    if (!in_range(node, *value, path)) return {};
    return Value(*value);
  }

  bool in_range(const YamlNode& node, double value, const std::string& path) {
    const auto limit = [](double v) {
      return v == std::floor(v) && std::abs(v) < 1e15 ? std::to_string(static_cast<int64_t>(v)) : to_string(Value(v));
    };
    std::string expected;
    if (value < field_.min || (field_.min_open && value == field_.min))
      expected = (field_.min_open ? "above " : "at least ") + limit(field_.min);
    else if (value > field_.max || (field_.max_open && value == field_.max))
      expected = (field_.max_open ? "below " : "at most ") + limit(field_.max);
    if (expected.empty()) return true;
    // The field is a probability or a share, and the value was probably meant in percent.
    const bool is_percent = field_.max == 1 && value > 1 && value <= 100 && field_.kind == FieldKind::number;
    problems_.add(node.pos, path, "must be " + expected + ", not " + node.text,
                  is_percent ? "a share is between 0 and 1: write " + to_string(Value(value / 100)) : "");
    return false;
  }

  const Field& field_;
  Problems& problems_;
};

}  // namespace

std::string at_index(const std::string& path, size_t index) { return path + "[" + std::to_string(index) + "]"; }

std::string at_key(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

std::optional<double> parse_number(const std::string& text) {
  // from_chars does not accept a leading plus; strtod accepts too much (hex, nan, the locale's comma).
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || begin == end || !std::isfinite(value)) return {};
  return value;
}

std::optional<int64_t> parse_integer(const std::string& text) {
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || begin == end) return {};
  if (text.starts_with("+-")) return {};
  return value;
}

std::optional<Value> read_value(const YamlNode& node, const Field& field, const std::string& path, Problems& problems) {
  return ValueReader(field, problems).read(node, path);
}

std::vector<std::string> read_texts(const YamlNode& node, const std::string& path, const std::string& what,
                                    Problems& problems) {
  std::vector<std::string> texts;
  const auto take = [&](const YamlNode& item, const std::string& where) {
    if (item.is_scalar() && !item.text.empty())
      texts.push_back(item.text);
    else
      problems.add(item.pos, where, "must be " + what + ", not " + describe(item));
  };
  if (node.is_scalar()) {
    take(node, path);
  } else if (node.is_list()) {
    for (size_t i = 0; i < node.items.size(); ++i) take(node.items[i], at_index(path, i));
  } else {
    problems.add(node.pos, path, "must be a list, each item " + what + ", not " + describe(node));
  }
  return texts;
}

std::optional<std::vector<Ints>> read_int_lists(const YamlNode& node, const Field& item, const std::string& path,
                                                Problems& problems) {
  if (!node.is_list()) {
    problems.add(node.pos, path, "must be a list of lists of integers, not " + describe(node), "e.g. [[2, 1], [2, 1]]");
    return {};
  }
  Field inner = item;
  inner.kind = FieldKind::ints;
  std::vector<Ints> lists;
  for (size_t i = 0; i < node.items.size(); ++i) {
    if (node.items[i].is_scalar()) {
      problems.add(node.items[i].pos, at_index(path, i), "must be a list of integers, not " + describe(node.items[i]),
                   "this is a list of lists: [[2, 1], [2, 1]]");
      return {};
    }
    if (std::optional<Value> list = read_value(node.items[i], inner, at_index(path, i), problems))
      lists.push_back(std::get<Ints>(*list));
  }
  if (lists.size() != node.items.size()) return {};
  return lists;
}

}  // namespace trainctl
