// The types of numbers in array files, and the elements that a sample gets from them: the table of arrays.h.
#include "engine/train/data/sources/stored_element.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "engine/graph/f16.h"
#include "engine/train/data/sources/field_bytes.h"

namespace trainctl {
namespace {

struct Row {
  StoredElement stored;
  std::string_view name;
  int64_t bytes;
  ElementType type;
};
constexpr Row kRows[] = {
    {StoredElement::boolean, "bool", 1, ElementType::u8}, {StoredElement::u8, "u8", 1, ElementType::u8},
    {StoredElement::i8, "i8", 1, ElementType::i32},       {StoredElement::u16, "u16", 2, ElementType::u16},
    {StoredElement::i16, "i16", 2, ElementType::i32},     {StoredElement::i32, "i32", 4, ElementType::i32},
    {StoredElement::u32, "u32", 4, ElementType::i64},     {StoredElement::i64, "i64", 8, ElementType::i64},
    {StoredElement::f16, "f16", 2, ElementType::f32},     {StoredElement::bf16, "bf16", 2, ElementType::bf16},
    {StoredElement::f32, "f32", 4, ElementType::f32},     {StoredElement::f64, "f64", 8, ElementType::f32},
};

const Row& row_of(StoredElement stored) {
  const Row& row = kRows[static_cast<size_t>(stored)];
  check(row.stored == stored, "the rows are in the order of StoredElement");
  return row;
}

/// Rounds to f32. A value that is too small becomes 0 or the least number. Infinities and nan do not change.
float narrowed(double value) {
  const auto narrow = static_cast<float>(value);
  if (std::isinf(narrow) && std::isfinite(value))
    throw EnvError(fmt::format("the number {} is too large for a 32-bit float", value));
  return narrow;
}

template <class From, class To, class F>
void convert_each(std::span<const uint8_t> from, FieldBytes& out, F&& value_of) {
  const size_t count = from.size() / sizeof(From);
  out.resize(count * sizeof(To));
  for (size_t i = 0; i < count; ++i) {
    From stored;
    std::memcpy(&stored, from.data() + i * sizeof(From), sizeof(From));
    const To value = value_of(stored);
    std::memcpy(out.data() + i * sizeof(To), &value, sizeof(To));
  }
}

}  // namespace

std::string_view to_string(StoredElement stored) { return row_of(stored).name; }
int64_t byte_size(StoredElement stored) { return row_of(stored).bytes; }
ElementType element_type(StoredElement stored) { return row_of(stored).type; }

void convert(StoredElement stored, std::span<const uint8_t> from, FieldBytes& out) {
  const auto widen = [](auto value) { return static_cast<int32_t>(value); };
  switch (stored) {
    case StoredElement::boolean:
      return convert_each<uint8_t, uint8_t>(from, out, [](uint8_t value) { return uint8_t{value != 0}; });
    case StoredElement::i8:
      return convert_each<int8_t, int32_t>(from, out, widen);
    case StoredElement::i16:
      return convert_each<int16_t, int32_t>(from, out, widen);
    case StoredElement::u32:
      return convert_each<uint32_t, int64_t>(from, out, [](uint32_t value) { return int64_t{value}; });
    case StoredElement::f16:
      return convert_each<uint16_t, float>(from, out, from_f16);
    case StoredElement::f64:
      return convert_each<double, float>(from, out, narrowed);
    default:
      return store(from, out);
  }
}

double stored_as_double(StoredElement element, const uint8_t* at) {
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (element) {
    case StoredElement::i64:
      return static_cast<double>(load(int64_t{}));
    case StoredElement::f64:
      return load(double{});
    case StoredElement::f32:
      return load(float{});
    case StoredElement::i32:
      return load(int32_t{});
    default:
      break;
  }
  FieldBytes wide;
  convert(element, {at, static_cast<size_t>(byte_size(element))}, wide);
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, wide.data(), sizeof value);
    return static_cast<double>(value);
  };
  switch (element_type(element)) {
    case ElementType::u8:
      return read(uint8_t{});
    case ElementType::u16:
      return read(uint16_t{});
    case ElementType::i32:
      return read(int32_t{});
    case ElementType::i64:
      return read(int64_t{});
    case ElementType::f32:
      return read(float{});
    case ElementType::bf16: {
      uint32_t bits = 0;
      std::memcpy(reinterpret_cast<uint8_t*>(&bits) + 2, wide.data(), 2);
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
  }
  return 0;
}

}  // namespace trainctl
