// Constructors of Field, and the values of fields with their defaults.
#include "engine/base/field.h"

namespace trainctl {

Field make_field(std::string name, FieldKind kind, std::string doc) {
  Field field;
  field.name = std::move(name);
  field.kind = kind;
  field.doc = std::move(doc);
  return field;
}

Field flag(std::string name, bool fallback, std::string doc) {
  return make_field(std::move(name), FieldKind::flag, std::move(doc)).defaults(fallback);
}
Field integer(std::string name, std::string doc) {
  return make_field(std::move(name), FieldKind::integer, std::move(doc));
}
Field number(std::string name, std::string doc) {
  return make_field(std::move(name), FieldKind::number, std::move(doc));
}
Field text(std::string name, std::string doc) { return make_field(std::move(name), FieldKind::text, std::move(doc)); }
Field ints(std::string name, std::string doc) { return make_field(std::move(name), FieldKind::ints, std::move(doc)); }
Field numbers(std::string name, std::string doc) {
  return make_field(std::move(name), FieldKind::numbers, std::move(doc));
}
Field int_lists(std::string name, std::string doc) {
  return make_field(std::move(name), FieldKind::int_lists, std::move(doc));
}
Field per_dim(std::string name, std::string doc, std::vector<std::string> words) {
  Field field = make_field(std::move(name), FieldKind::per_dim, std::move(doc));
  field.choices = std::move(words);
  return field;
}

std::string nested_attr(const std::string& field, const std::string& inner) { return field + "." + inner; }

Attrs nested_attrs(const Attrs& attrs, const std::string& field) {
  Attrs inner;
  const std::string prefix = nested_attr(field, "");
  for (const auto& [name, value] : attrs)
    if (name.starts_with(prefix)) inner.set(name.substr(prefix.size()), value);
  return inner;
}

std::string mapping_of(const Field& field) {
  const size_t dot = field.name.find('.');
  return dot == std::string::npos ? "" : field.name.substr(0, dot);
}

Attrs with_defaults(const Attrs& given, const std::vector<Field>& fields) {
  Attrs values;
  for (const Field& field : fields) {
    for (const auto& [name, value] : nested_attrs(given, field.name)) values.set(nested_attr(field.name, name), value);
    if (const Value* value = given.find(field.name))
      values.set(field.name, *value);
    else if (field.fallback)
      values.set(field.name, *field.fallback);
  }
  return values;
}

std::vector<std::string> names_of(const std::vector<Field>& fields) {
  std::vector<std::string> names;
  for (const Field& field : fields) names.push_back(field.name);
  return names;
}

}  // namespace trainctl
