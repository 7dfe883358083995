// The values of MDS samples (mds.h): which column an encoding becomes, and its values.
#include "engine/train/data/tables/mds_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

struct MdsNumber {
  std::string_view name;
  uint8_t code;  ///< in arrays
  StoredElement element;
};
constexpr MdsNumber kMdsNumbers[] = {
    {"uint8", 8, StoredElement::u8},   {"int8", 9, StoredElement::i8},      {"uint16", 16, StoredElement::u16},
    {"int16", 17, StoredElement::i16}, {"float16", 18, StoredElement::f16}, {"uint32", 32, StoredElement::u32},
    {"int32", 33, StoredElement::i32}, {"float32", 34, StoredElement::f32}, {"uint64", 64, StoredElement::i64},
    {"int64", 65, StoredElement::i64}, {"float64", 66, StoredElement::f64},
};

const MdsNumber* mds_number(std::string_view name) {
  const auto* found = std::find_if(std::begin(kMdsNumbers), std::end(kMdsNumbers),
                                   [&](const MdsNumber& number) { return number.name == name; });
  return found == std::end(kMdsNumbers) ? nullptr : found;
}

const MdsNumber* mds_number(uint8_t code) {
  const auto* found = std::find_if(std::begin(kMdsNumbers), std::end(kMdsNumbers),
                                   [&](const MdsNumber& number) { return number.code == code; });
  return found == std::end(kMdsNumbers) ? nullptr : found;
}

/// ndarray, ndarray:float32 and ndarray:float32:3,4. If there is no type (`is_untyped`), the first value determines it.
MdsColumn array_column(MdsColumn column) {
  const std::string_view encoding = column.encoding;
  const std::string bad = "has the encoding '" + printable(shortened(column.encoding)) + "', which is not of MDS";
  const size_t type_at = encoding.find(':');
  column.column.kind = ColumnKind::number;
  column.column.shape = {-1};
  if (type_at == std::string_view::npos) {
    column.column.is_untyped = true;
    return column;
  }
  const size_t shape_at = encoding.find(':', type_at + 1);
  const MdsNumber* number = mds_number(encoding.substr(type_at + 1, shape_at - type_at - 1));
  if (number == nullptr) throw EnvError(bad);
  column.column.element = number->element;
  if (shape_at == std::string_view::npos) return column;
  column.column.shape.clear();
  std::string_view rest = encoding.substr(shape_at + 1);
  while (!rest.empty()) {
    int64_t dim = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), dim);
    if (error != std::errc() || dim <= 0) throw EnvError(bad);
    column.column.shape.push_back(dim);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (!rest.empty() && rest.front() != ',') throw EnvError(bad);
    if (!rest.empty()) rest.remove_prefix(1);
  }
  column.bytes = capped_product(capped_product(column.column.shape), byte_size(number->element));
  if (column.column.shape.empty() || column.bytes > (int64_t{1} << 32)) throw EnvError(bad);
  return column;
}

void set_elements(StoredElement element, std::span<const uint8_t> bytes, bool is_unsigned, TableValue& out) {
  out.is_null = false;
  out.bytes.assign(bytes.begin(), bytes.end());
  if (!is_unsigned || element != StoredElement::i64) return;
  for (size_t i = 7; i < bytes.size(); i += 8)
    if ((bytes[i] & 0x80) != 0) throw EnvError("a number exceeds 63 bits, which is not supported");
}

/// Reads an array of ndarray encoding: its type and shape, where the column does not fix them, and its elements.
void read_array(const MdsColumn& column, std::span<const uint8_t> bytes, TableValue& out) {
  const auto take = [&](size_t count) {
    if (bytes.size() < count) throw EnvError("the array is truncated");
    const auto part = bytes.first(count);
    bytes = bytes.subspan(count);
    return part;
  };
  StoredElement element = column.column.element;
  bool is_unsigned = column.encoding.find("uint64") != std::string::npos;
  if (column.column.is_untyped) {
    const MdsNumber* number = mds_number(take(1)[0]);
    if (number == nullptr) throw EnvError("the array has an unknown type");
    element = number->element;
    is_unsigned = number->name == "uint64";
  }
  if (column.bytes > 0) {
    out.shape = column.column.shape;
  } else {
    const uint8_t form = take(1)[0];
    const size_t width = size_t{1} << (form & 3);
    out.shape.clear();
    for (int dim = 0; dim < form >> 2; ++dim) {
      uint64_t size = 0;
      const auto part = take(width);
      std::memcpy(&size, part.data(), width);
      out.shape.push_back(static_cast<int64_t>(std::min<uint64_t>(size, uint64_t{1} << 40)));
    }
  }
  const int64_t expected = capped_product(capped_product(out.shape), byte_size(element));
  if (expected != static_cast<int64_t>(bytes.size()))
    throw EnvError(fmt::format("the array of shape {} needs {} bytes, but has {}", to_string(out.shape),
                               with_commas(expected), with_commas(static_cast<int64_t>(bytes.size()))));
  if (column.column.is_untyped) {  // its column is f64
    FieldBytes wide;
    std::vector<uint8_t> numbers;
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(byte_size(element))) {
      const double value = stored_as_double(element, bytes.data() + at);
      numbers.insert(numbers.end(), reinterpret_cast<const uint8_t*>(&value),
                     reinterpret_cast<const uint8_t*>(&value) + sizeof value);
    }
    return set_elements(StoredElement::f64, numbers, false, out);
  }
  set_elements(element, bytes, is_unsigned, out);
}

template <class T>
void read_number_text(std::string_view text, TableValue& out) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw EnvError("expected a number, found '" + printable(shortened(text)) + "'");
  set_elements(sizeof(T) == 8 ? StoredElement::f64 : StoredElement::f32,
               {reinterpret_cast<const uint8_t*>(&value), sizeof value}, false, out);
}

}  // namespace

MdsColumn mds_column(const std::string& name, const std::string& encoding) {
  MdsColumn column{{name, ColumnKind::nested}, encoding, 0};
  if (encoding == "int" || mds_number(encoding) != nullptr) {
    column.column.kind = ColumnKind::number;
    column.column.element = encoding == "int" ? StoredElement::i64 : mds_number(encoding)->element;
    column.bytes = byte_size(column.column.element);
    return column;
  }
  if (encoding == "ndarray" || encoding.starts_with("ndarray:")) return array_column(std::move(column));
  if (encoding == "str" || encoding == "str_decimal") column.column.kind = ColumnKind::text;
  if (encoding == "json") column.column.kind = ColumnKind::json;
  if (encoding == "bytes" || encoding == "jpeg" || encoding == "png") column.column.kind = ColumnKind::bytes;
  if (encoding == "str_int" || encoding == "str_float") {
    column.column.kind = ColumnKind::number;
    column.column.element = encoding == "str_int" ? StoredElement::i64 : StoredElement::f64;
  }
  return column;
}

void split_mds_sample(std::span<const uint8_t> sample, const std::vector<MdsColumn>& columns,
                      std::vector<std::span<const uint8_t>>& values) {
  size_t variable = 0;
  for (const MdsColumn& column : columns) variable += column.bytes == 0 ? 1 : 0;
  uint64_t at = 4 * variable;
  if (at > sample.size()) throw EnvError("is damaged: the sample is shorter than the sizes of its values");
  size_t size_at = 0;
  values.clear();
  for (const MdsColumn& column : columns) {
    uint64_t bytes = static_cast<uint64_t>(column.bytes);
    if (bytes == 0) {
      uint32_t size = 0;
      std::memcpy(&size, sample.data() + size_at, sizeof size);
      size_at += sizeof size;
      bytes = size;
    }
    if (bytes > sample.size() - at) throw EnvError("is damaged: the values exceed the sample");
    values.push_back(sample.subspan(at, bytes));
    at += bytes;
  }
  if (at != sample.size()) throw EnvError("is damaged: the values do not fill the sample");
}

void read_mds_value(const MdsColumn& column, std::span<const uint8_t> bytes, TableValue& out) {
  out.is_null = true;
  out.shape.clear();
  out.bytes.clear();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  switch (column.column.kind) {
    case ColumnKind::text:
    case ColumnKind::json:
    case ColumnKind::bytes:
      return out.set_bytes(text);
    case ColumnKind::nested:
      throw EnvError("has the encoding '" + printable(shortened(column.encoding)) +
                     "', which is not supported; write it as jpeg, png, bytes, json or ndarray");
    case ColumnKind::number:
      break;
  }
  if (column.encoding == "str_int") return read_number_text<int64_t>(text, out);
  if (column.encoding == "str_float") return read_number_text<double>(text, out);
  if (column.encoding.starts_with("ndarray")) return read_array(column, bytes, out);
  set_elements(column.column.element, bytes, column.encoding == "uint64", out);
}

}  // namespace trainctl
