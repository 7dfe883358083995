// Values of templates: those of Python that chat templates use.
#include "engine/text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "engine/text/unicode.h"

namespace trainctl::jinja {
namespace {

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

/// The text as a JSON string with its quotes. `ascii`: characters beyond ASCII are escaped too.
std::string escaped_for_json(std::string_view text, bool ascii) {
  std::string result = "\"";
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    const std::string_view bytes = text.substr(at, c.bytes);
    at += c.bytes;
    constexpr std::pair<char32_t, std::string_view> kShort[] = {
        {'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"}, {'\t', "\\t"}, {'\b', "\\b"}, {'\f', "\\f"}};
    const auto known =
        std::find_if(std::begin(kShort), std::end(kShort), [&](const auto& s) { return s.first == c.value; });
    if (known != std::end(kShort))
      result += known->second;
    else if (c.value < 0x20 || (ascii && c.value >= 0x7F && c.value < 0x10000))
      result += c.value == 0x7F ? std::string(bytes) : fmt::format("\\u{:04x}", static_cast<uint32_t>(c.value));
    else if (ascii && c.value >= 0x10000)
      result += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((static_cast<uint32_t>(c.value) - 0x10000) >> 10),
                            0xDC00 + ((static_cast<uint32_t>(c.value) - 0x10000) & 0x3FF));
    else
      result += bytes;
  }
  return result + "\"";
}

/// The result of Python's repr() of a text.
std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\')
      (result += '\\') += c;
    else if (c == '\n')
      result += "\\n";
    else if (c == '\r')
      result += "\\r";
    else if (c == '\t')
      result += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      result += c;
  }
  return result + quote;
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {
    separator_ = !style.item_separator.empty() ? style.item_separator : style.indent >= 0 ? "," : ", ";
  }

  void write(const Value& value, int depth) {
    require_text_fits(out_.size());
    if (value.is_none())
      out_ += "null";
    else if (value.is<bool>())
      out_ += value.truth() ? "true" : "false";
    else if (value.is_number())
      out_ += to_text(value);
    else if (value.is_text())
      out_ += escaped_for_json(value.text(), style_.ascii);
    else if (value.is_list())
      write_list(value.list(), depth);
    else if (value.is_dict())
      write_dict(value.dict(), depth);
    else
      throw EnvError(fmt::format("tojson: a value of type {} cannot be written as JSON", value.type_name()));
  }
  std::string take() { return std::move(out_); }

 private:
  void new_line(int depth) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(style_.indent * depth), ' ');
  }

  void write_list(const List& list, int depth) {
    out_ += '[';
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) out_ += separator_;
      new_line(depth + 1);
      write(list[i], depth + 1);
    }
    if (!list.empty()) new_line(depth);
    out_ += ']';
  }

  void write_dict(Dict dict, int depth) {
    if (style_.sorted)
      std::stable_sort(dict.begin(), dict.end(), [](const auto& a, const auto& b) { return less(a.first, b.first); });
    out_ += '{';
    for (size_t i = 0; i < dict.size(); ++i) {
      if (i > 0) out_ += separator_;
      new_line(depth + 1);
      out_ += escaped_for_json(to_text(dict[i].first), style_.ascii) + style_.key_separator;
      write(dict[i].second, depth + 1);
    }
    if (!dict.empty()) new_line(depth);
    out_ += '}';
  }

  JsonStyle style_;
  std::string separator_, out_;
};

}  // namespace

void require_text_fits(size_t bytes) {
  if (bytes > kMostText) throw EnvError("a string in the template is larger than 64 MiB");
}

Value::Value(List list) {
  for (const Value& part : list) enclose(part);
  ++depth_;
  data_ = std::make_shared<List>(std::move(list));
}

Value::Value(Dict dict) {
  for (const auto& [key, part] : dict) {
    enclose(key);
    enclose(part);
  }
  ++depth_;
  data_ = std::make_shared<Dict>(std::move(dict));
}

void Value::enclose(const Value& part) {
  if (part.is_name_space_) throw EnvError("a namespace inside of another value is not supported");
  if (part.depth_ >= kDeepestValue) throw EnvError("values are nested more than 200 levels deep");
  depth_ = std::max(depth_, part.depth_);
}

const Value* Arguments::find(size_t at, std::string_view name) const {
  if (at < values.size()) return &values[at];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

Value Value::from(const nlohmann::ordered_json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List list;
    for (const auto& element : json) list.push_back(from(element));
    return list;
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [key, value] : json.items()) dict.emplace_back(Value(key), from(value));
    return dict;
  }
  return {};
}

Value Value::name_space(Dict dict) {
  Value value(std::move(dict));
  value.is_name_space_ = true;
  return value;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is<bool>()) return std::get<bool>(data_);
  if (is_number()) return number() != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return !list().empty();
  if (is_dict()) return is_name_space_ || !dict().empty();
  return true;
}

const Value* Value::find(const Value& key) const {
  for (const auto& [known, value] : dict())
    if (known == key) return &value;
  return nullptr;
}

void Value::set(const Value& key, Value value) {
  enclose(value);
  Dict& entries = *std::get<std::shared_ptr<Dict>>(data_);
  for (auto& [known, old] : entries)
    if (known == key) {
      old = std::move(value);
      return;
    }
  entries.emplace_back(key, std::move(value));
}

std::string_view Value::type_name() const {
  constexpr std::string_view kNames[] = {"undefined", "None", "bool", "int",     "float",
                                         "str",       "list", "dict", "function"};
  return kNames[data_.index()];
}

bool operator==(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.is_text() && b.is_text()) return a.text() == b.text();
  if (a.is_list() && b.is_list()) return a.list() == b.list();
  if (a.is_dict() && b.is_dict()) {
    return a.dict().size() == b.dict().size() && std::all_of(a.dict().begin(), a.dict().end(), [&](const auto& entry) {
             const Value* other = b.find(entry.first);
             return other != nullptr && *other == entry.second;
           });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (a.is_text() && b.is_text()) return a.text() < b.text();
  if (a.is_list() && b.is_list())
    return std::lexicographical_compare(a.list().begin(), a.list().end(), b.list().begin(), b.list().end(), less);
  throw EnvError(fmt::format("values of types {} and {} have no order", a.type_name(), b.type_name()));
}

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  return value.is_text() ? value.text() : representation(value);
}

/// Appends the result of Python's repr() of a value.
static void append_representation(const Value& value, std::string& to) {
  require_text_fits(to.size());
  if (value.is_list()) {
    to += '[';
    for (size_t i = 0; i < value.list().size(); ++i) {
      if (i > 0) to += ", ";
      append_representation(value.list()[i], to);
    }
    to += ']';
  } else if (value.is_dict()) {
    to += '{';
    for (size_t i = 0; i < value.dict().size(); ++i) {
      if (i > 0) to += ", ";
      append_representation(value.dict()[i].first, to);
      to += ": ";
      append_representation(value.dict()[i].second, to);
    }
    to += '}';
  } else if (value.is_text()) {
    to += quoted(value.text());
  } else if (value.is<bool>()) {
    to += value.truth() ? "True" : "False";
  } else if (value.is_number()) {
    to += value.is<double>() ? number_text(value.number()) : std::to_string(value.integer());
  } else {
    to += value.is_none() ? "None" : value.is_undefined() ? "Undefined" : "<function>";
  }
}

std::string representation(const Value& value) {
  std::string text;
  append_representation(value, text);
  return text;
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return writer.take();
}

List elements(const Value& value) {
  if (value.is_list()) return value.list();
  List result;
  if (value.is_undefined()) return result;
  if (value.is_dict()) {
    for (const auto& entry : value.dict()) result.push_back(entry.first);
    return result;
  }
  if (!value.is_text()) throw EnvError(fmt::format("a value of type {} has no elements", value.type_name()));
  for (size_t at = 0; at < value.text().size();) {
    const size_t bytes = code_point(value.text(), at).bytes;
    result.emplace_back(value.text().substr(at, bytes));
    at += bytes;
  }
  return result;
}

Value slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (!value.is_list() && !value.is_text())
    throw EnvError(fmt::format("a value of type {} cannot be sliced", value.type_name()));
  const List all = elements(value);
  const auto size = static_cast<int64_t>(all.size());
  const int64_t by = step.is_none() ? 1 : step.integer();
  if (by == 0) throw EnvError("the step of a slice is 0");
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto bound = [&](const Value& at, int64_t otherwise) {
    if (at.is_none()) return otherwise;
    const int64_t place = at.integer();
    return std::clamp(place < 0 ? place + size : place, low, high);
  };
  List result;
  const int64_t end = bound(stop, by > 0 ? high : low);
  for (int64_t at = bound(start, by > 0 ? low : high); by > 0 ? at < end : at > end; at += by)
    result.push_back(all[static_cast<size_t>(at)]);
  if (value.is_list()) return result;
  std::string text;
  for (const Value& character : result) text += character.text();
  return text;
}

}  // namespace trainctl::jinja
