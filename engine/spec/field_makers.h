// Rows of the field table that are stored in a member of a struct of job_spec.h.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/spec/fields.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

template <class>
struct MemberOf;
template <class C, class T>
struct MemberOf<T C::*> {
  using Class = C;
  using Type = T;
};

template <class E>
std::vector<std::string> enum_names() {
  std::vector<std::string> names;
  for (int i = 0; !to_string(static_cast<E>(i)).empty(); ++i) names.emplace_back(to_string(static_cast<E>(i)));
  return names;
}

template <class E>
E enum_value(const std::string& name) {
  for (int i = 0; !to_string(static_cast<E>(i)).empty(); ++i)
    if (to_string(static_cast<E>(i)) == name) return static_cast<E>(i);
  check(false, "the value of a choice must be one of its choices");
  return {};
}

template <class T>
constexpr FieldKind kind_of() {
  if constexpr (std::is_same_v<T, bool>)
    return FieldKind::flag;
  else if constexpr (std::is_enum_v<T>)
    return FieldKind::choice;
  else if constexpr (std::is_integral_v<T>)
    return FieldKind::integer;
  else if constexpr (std::is_same_v<T, double>)
    return FieldKind::number;
  else if constexpr (std::is_same_v<T, Ints>)
    return FieldKind::ints;
  else if constexpr (std::is_same_v<T, std::vector<double>>)
    return FieldKind::numbers;
  else
    return FieldKind::text;
}

/// A field stored in one member; its kind follows from the member's type.
template <auto Member>
Field field(std::string name, std::string doc) {
  using C = typename MemberOf<decltype(Member)>::Class;
  using T = typename MemberOf<decltype(Member)>::Type;
  Field f;
  f.name = std::move(name);
  f.doc = std::move(doc);
  f.kind = kind_of<T>();
  if constexpr (std::is_enum_v<T>) f.choices = enum_names<T>();
  if constexpr (std::is_same_v<T, int>) f.max = std::numeric_limits<int>::max();
  f.set = [](void* object, const Value& value) {
    T& member = static_cast<C*>(object)->*Member;
    if constexpr (std::is_enum_v<T>)
      member = enum_value<T>(std::get<std::string>(value));
    else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      member = static_cast<T>(std::get<int64_t>(value));
    else
      member = std::get<T>(value);
  };
  f.get = [](const void* object) -> Value {
    const T& member = static_cast<const C*>(object)->*Member;
    if constexpr (std::is_enum_v<T>)
      return std::string(to_string(member));
    else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      return static_cast<int64_t>(member);
    else
      return member;
  };
  return f;
}

/// An integer that is never 0 in a job file: 0 in the struct means that it has no value.
template <auto Member>
Field unless_zero(std::string name, std::string doc) {
  using C = typename MemberOf<decltype(Member)>::Class;
  Field f = field<Member>(std::move(name), std::move(doc));
  f.get = [](const void* object) -> Value {  // an empty text means "not set"
    const int64_t number = static_cast<const C*>(object)->*Member;
    return number == 0 ? Value(std::string()) : Value(number);
  };
  return f;
}

/// A number that is never 0 in a job file: 0 in the struct means that it has no value.
template <auto Member>
Field unless_zero_number(std::string name, std::string doc) {
  using C = typename MemberOf<decltype(Member)>::Class;
  Field f = field<Member>(std::move(name), std::move(doc));
  f.get = [](const void* object) -> Value {
    const double number = static_cast<const C*>(object)->*Member;
    return number == 0 ? Value(std::string()) : Value(number);
  };
  return f;
}

/// A field that is a list of texts: of paths (FieldKind::paths) or of any names (FieldKind::any_names).
template <auto Member>
Field list_field(std::string name, FieldKind kind, std::string doc) {
  using C = typename MemberOf<decltype(Member)>::Class;
  Field f = make_field(std::move(name), kind, std::move(doc));
  f.list = [](void* object) -> std::vector<std::string>& { return static_cast<C*>(object)->*Member; };
  return f;
}

template <auto Member>
Field subsection(std::string name, const Section& section, std::string doc) {
  using C = typename MemberOf<decltype(Member)>::Class;
  Field f;
  f.name = std::move(name);
  f.doc = std::move(doc);
  f.kind = FieldKind::section;
  f.section = &section;
  f.object = [](void* enclosing, bool) -> void* { return &(static_cast<C*>(enclosing)->*Member); };
  return f;
}

}  // namespace trainctl
