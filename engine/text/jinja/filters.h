// Filters, tests, methods and functions of templates.
#pragma once

#include <string>
#include <string_view>

#include "engine/text/jinja/value.h"

namespace trainctl::jinja {

bool has_filter(const std::string& name);
bool has_test(const std::string& name);
/// value | name(arguments). Throws EnvError if the filter cannot be applied.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
/// A method of a text, list or dict, such as strip; Undefined if it has none.
Value method_of(const Value& value, const std::string& name);
/// value.name, value['name'] or value[0]: Undefined if there is no such element.
Value item_of(const Value& value, const Value& key);
bool contains(const Value& container, const Value& value);
/// The global functions: range, namespace, dict, raise_exception, strftime_now.
const Dict& globals();

}  // namespace trainctl::jinja
