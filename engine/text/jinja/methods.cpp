// The methods that values of chat templates have, such as text.split() and mapping.items().
#include <algorithm>
#include <map>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/text_functions.h"
#include "engine/text/unicode.h"

namespace trainctl::jinja {
namespace {

using TextMethod = Value (*)(const std::string& text, const Arguments& arguments);
using Method = Value (*)(const Value& value, const Arguments& arguments);

const std::string& text_at(const Arguments& arguments, size_t at) {
  const Value* value = arguments.find(at, "");
  if (value == nullptr || !value->is_text()) throw EnvError("a string method needs a string as argument");
  return value->text();
}

Value strip_ends(const std::string& text, const Arguments& arguments, bool left, bool right) {
  const Value* characters = arguments.find(0, "");
  if (characters == nullptr || characters->is_none()) return strip_text(text, {}, left, right);
  return strip_text(text, to_utf32(text_at(arguments, 0)), left, right);
}

bool has_end(const std::string& text, const Arguments& arguments, bool at_start) {
  const Value* given = arguments.find(0, "");
  if (given == nullptr) throw EnvError("startswith and endswith need an argument");
  const List ends = given->is_list() ? given->list() : List{*given};
  return std::any_of(ends.begin(), ends.end(), [&](const Value& end) {
    if (!end.is_text()) throw EnvError("startswith and endswith need a string");
    return at_start ? text.starts_with(end.text()) : text.ends_with(end.text());
  });
}

int64_t most_splits(const Arguments& arguments) {
  const Value* most = arguments.find(1, "maxsplit");
  return most != nullptr && most->is_integer() ? most->integer() : -1;
}

/// The method split: the parts between separators, at most maxsplit of them cut off from the front.
Value split(const std::string& text, const Arguments& arguments) {
  const Value* separator = arguments.find(0, "sep");
  if (separator == nullptr || separator->is_none()) return split_at_blanks(text, most_splits(arguments));
  if (!separator->is_text() || separator->text().empty()) throw EnvError("split needs a separator");
  List parts;
  size_t at = 0;
  for (int64_t most = most_splits(arguments); most != 0; --most) {
    const size_t end = text.find(separator->text(), at);
    if (end == std::string::npos) break;
    parts.emplace_back(text.substr(at, end - at));
    at = end + separator->text().size();
  }
  parts.emplace_back(text.substr(at));
  return parts;
}

/// The method rsplit: like split, but the parts are cut off from the end.
Value rsplit(const std::string& text, const Arguments& arguments) {
  const Value* separator = arguments.find(0, "sep");
  if (separator == nullptr || !separator->is_text() || separator->text().empty())
    throw EnvError("rsplit needs a separator");
  List parts;
  std::string rest = text;
  for (int64_t most = most_splits(arguments); most != 0; --most) {
    const size_t at = rest.rfind(separator->text());
    if (at == std::string::npos) break;
    parts.emplace_back(rest.substr(at + separator->text().size()));
    rest.resize(at);
  }
  parts.emplace_back(rest);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value replace(const std::string& text, const Arguments& arguments) {
  const Value* most = arguments.find(2, "count");
  return replace_text(text, text_at(arguments, 0), text_at(arguments, 1), most != nullptr ? most->integer() : -1);
}

Value join_method(const std::string& text, const Arguments& arguments) {
  const Value* list = arguments.find(0, "");
  if (list == nullptr) throw EnvError("join needs a list");
  std::string joined;
  bool is_first = true;
  for (const Value& element : elements(*list)) {
    if (!element.is_text()) throw EnvError("join needs strings");
    require_text_fits(joined.size());
    joined += (std::exchange(is_first, false) ? "" : text) + element.text();
  }
  return joined;
}

/// The number of characters before the first occurrence; -1 if there is none.
int64_t find_text(const std::string& text, const std::string& what) {
  const size_t at = text.find(what);
  return at == std::string::npos ? -1 : static_cast<int64_t>(to_utf32(text.substr(0, at)).size());
}

Value count(const std::string& text, const Arguments& arguments) {
  const std::string& what = text_at(arguments, 0);
  int64_t number = 0;
  for (size_t at = what.empty() ? std::string::npos : text.find(what); at != std::string::npos;
       at = text.find(what, at + what.size()))
    ++number;
  return number;
}

Value splitlines(const std::string& text, const Arguments&) {
  List lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of("\n\r", at), text.size());
    lines.emplace_back(text.substr(at, end - at));
    at = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return lines;
}

const std::map<std::string, TextMethod, std::less<>>& text_methods() {
  static const std::map<std::string, TextMethod, std::less<>> methods = {
      {"capitalize", [](const std::string& t, const Arguments&) { return Value(capitalize(t)); }},
      {"count", count},
      {"endswith", [](const std::string& t, const Arguments& a) { return Value(has_end(t, a, false)); }},
      {"find", [](const std::string& t, const Arguments& a) { return Value(find_text(t, text_at(a, 0))); }},
      {"isdigit",
       [](const std::string& t, const Arguments&) {
         return Value(!t.empty() &&
                      std::all_of(t.begin(), t.end(), [](unsigned char c) { return c >= '0' && c <= '9'; }));
       }},
      {"join", join_method},
      {"lower", [](const std::string& t, const Arguments&) { return Value(lower_text(t)); }},
      {"lstrip", [](const std::string& t, const Arguments& a) { return strip_ends(t, a, true, false); }},
      {"removeprefix",
       [](const std::string& t, const Arguments& a) {
         return Value(t.starts_with(text_at(a, 0)) ? t.substr(text_at(a, 0).size()) : t);
       }},
      {"removesuffix",
       [](const std::string& t, const Arguments& a) {
         return Value(t.ends_with(text_at(a, 0)) ? t.substr(0, t.size() - text_at(a, 0).size()) : t);
       }},
      {"replace", replace},
      {"rsplit", rsplit},
      {"rstrip", [](const std::string& t, const Arguments& a) { return strip_ends(t, a, false, true); }},
      {"split", split},
      {"splitlines", splitlines},
      {"startswith", [](const std::string& t, const Arguments& a) { return Value(has_end(t, a, true)); }},
      {"strip", [](const std::string& t, const Arguments& a) { return strip_ends(t, a, true, true); }},
      {"title", [](const std::string& t, const Arguments&) { return Value(title_text(t)); }},
      {"upper", [](const std::string& t, const Arguments&) { return Value(upper_text(t)); }}};
  return methods;
}

Value dict_items(const Value& value, const Arguments&) {
  List items;
  for (const auto& [key, element] : value.dict()) items.emplace_back(List{key, element});
  return items;
}

Value dict_values(const Value& value, const Arguments&) {
  List values;
  for (const auto& entry : value.dict()) values.push_back(entry.second);
  return values;
}

Value dict_get(const Value& value, const Arguments& arguments) {
  const Value *key = arguments.find(0, "key"), *otherwise = arguments.find(1, "default");
  const Value* found = key == nullptr ? nullptr : value.find(*key);
  return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value();
}

const std::map<std::string, Method, std::less<>>& dict_methods() {
  static const std::map<std::string, Method, std::less<>> methods = {
      {"get", dict_get},
      {"items", dict_items},
      {"keys", [](const Value& value, const Arguments&) { return Value(elements(value)); }},
      {"values", dict_values}};
  return methods;
}

Value list_index(const Value& value, const Arguments& arguments) {
  const Value* what = arguments.find(0, "value");
  const List& list = value.list();
  const auto found = what == nullptr ? list.end() : std::find(list.begin(), list.end(), *what);
  if (found == list.end()) throw EnvError("index: the list does not have the value");
  return static_cast<int64_t>(found - list.begin());
}

}  // namespace

Value method_of(const Value& value, const std::string& name) {
  if (value.is_text()) {
    const auto found = text_methods().find(name);
    if (found == text_methods().end()) return Undefined{name};
    return Function([text = value.text(), method = found->second](const Arguments& a) { return method(text, a); });
  }
  if (value.is_dict() && !value.is_name_space()) {
    const auto found = dict_methods().find(name);
    if (found == dict_methods().end()) return Undefined{name};
    return Function([value, method = found->second](const Arguments& a) { return method(value, a); });
  }
  if (value.is_list() && name == "index") return Function([value](const Arguments& a) { return list_index(value, a); });
  return Undefined{name};
}

}  // namespace trainctl::jinja
