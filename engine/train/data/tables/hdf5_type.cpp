// Types of HDF5 datasets: the datatype message of an object header.
#include "engine/train/data/tables/hdf5_type.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "engine/base/checked.h"

namespace trainctl {
namespace {

constexpr int kMostTypeDepth = 8;
constexpr uint32_t kMostTypeDims = 32;

/// The beginning of a datatype message.
struct TypeHead {
  int version = 0;
  uint32_t bits = 0;
  uint64_t bytes = 0;
};

Hdf5Type unreadable(const TypeHead& head, std::string problem) {
  Hdf5Type type;
  type.bytes = head.bytes;
  type.problem = std::move(problem);
  return type;
}

Hdf5Type integer_type(Hdf5Cursor& from, const TypeHead& head) {
  const auto offset = from.number(2), precision = from.number(2);
  if (offset != 0 || precision != 8 * head.bytes)
    return unreadable(head, fmt::format("has integers of {} bits in {} bytes", precision, head.bytes));
  Hdf5Type type{Hdf5Kind::number, head.bytes};
  const bool is_signed = (head.bits & 8) != 0;
  type.is_big_endian = (head.bits & 1) != 0;
  switch (head.bytes) {
    case 1:
      type.element = is_signed ? StoredElement::i8 : StoredElement::u8;
      return type;
    case 2:
      type.element = is_signed ? StoredElement::i16 : StoredElement::u16;
      return type;
    case 4:
      type.element = is_signed ? StoredElement::i32 : StoredElement::u32;
      return type;
    case 8:
      type.element = StoredElement::i64;
      type.is_unsigned_64 = !is_signed;
      return type;
    default:
      return unreadable(head, fmt::format("has integers of {} bytes", head.bytes));
  }
}

Hdf5Type float_type(Hdf5Cursor& from, const TypeHead& head) {
  from.skip(5);
  const auto exponent = from.u8();
  from.skip(1);
  const auto mantissa = from.u8();
  from.skip(4);
  Hdf5Type type{Hdf5Kind::number, head.bytes};
  type.is_big_endian = (head.bits & 1) != 0;
  if (head.bytes == 2 && exponent == 5 && mantissa == 10)
    type.element = StoredElement::f16;
  else if (head.bytes == 2 && exponent == 8 && mantissa == 7)
    type.element = StoredElement::bf16;
  else if (head.bytes == 4 && exponent == 8 && mantissa == 23)
    type.element = StoredElement::f32;
  else if (head.bytes == 8 && exponent == 11 && mantissa == 52)
    type.element = StoredElement::f64;
  else
    return unreadable(head, fmt::format("has floats of {} bytes with {} bits of exponent", head.bytes, exponent));
  if ((head.bits & 0x40) != 0) return unreadable(head, "has floats in VAX order");
  return type;
}

uint64_t little_endian(std::span<const uint8_t> bytes, bool is_big_endian) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size() && i < 8; ++i)
    value |= uint64_t{bytes[is_big_endian ? bytes.size() - 1 - i : i]} << (8 * i);
  return value;
}

/// Reads an enumeration. h5py stores booleans as an enumeration of FALSE and TRUE.
Hdf5Type enum_type(Hdf5Cursor& from, const Hdf5Bytes& file, const TypeHead& head, int depth) {
  Hdf5Type type = read_hdf5_type(from, file, depth + 1);
  const uint32_t count = head.bits & 0xFFFF;
  std::vector<std::string> names;
  for (uint32_t i = 0; i < count; ++i) {
    const size_t begin = from.at();
    names.push_back(from.text());
    if (head.version < 3) from.skip((8 - (from.at() - begin) % 8) % 8);
  }
  std::vector<std::string> classes(count);  // of the values 0, 1, 2, …, which may be in any order
  for (uint32_t i = 0; i < count; ++i)
    if (const uint64_t value = little_endian(from.take(type.bytes), type.is_big_endian); value < count)
      classes[value] = names[i];
  if (type.kind != Hdf5Kind::number) return type;
  const bool has_all = std::find(classes.begin(), classes.end(), "") == classes.end();
  if (type.bytes == 1 && classes == std::vector<std::string>{"FALSE", "TRUE"})
    type.element = StoredElement::boolean;
  else if (has_all)
    type.classes = std::move(classes);
  return type;
}

Hdf5Type compound_type(Hdf5Cursor& from, const Hdf5Bytes& file, const TypeHead& head, int depth) {
  Hdf5Type type{Hdf5Kind::compound, head.bytes};
  const uint32_t count = head.bits & 0xFFFF;
  const auto offset_bytes = static_cast<size_t>((std::bit_width(head.bytes) + 7) / 8);
  for (uint32_t i = 0; i < count; ++i) {
    const size_t begin = from.at();
    Hdf5Member member{from.text(), 0, {}};
    if (head.version < 3) from.skip((8 - (from.at() - begin) % 8) % 8);
    member.at = from.number(head.version < 3 ? 4 : offset_bytes);
    Shape shape;
    if (head.version == 1) {
      const uint32_t dims = from.u8();
      from.skip(11);
      for (uint32_t d = 0; d < 4; ++d) {
        const auto dim = static_cast<int64_t>(from.u32());
        if (d < dims) shape.push_back(dim);
      }
    }
    member.type = read_hdf5_type(from, file, depth + 1);
    if (!shape.empty()) {
      member.type.shape = shape;
      member.type.bytes = static_cast<uint64_t>(
          capped_product(capped_product(shape), static_cast<int64_t>(std::min<uint64_t>(member.type.bytes, 1u << 31))));
    }
    if (member.at > head.bytes || member.type.bytes > head.bytes - member.at)
      from.fail("a member exceeds its compound type");
    type.members.push_back(std::move(member));
  }
  return type;
}

Hdf5Type array_type(Hdf5Cursor& from, const Hdf5Bytes& file, const TypeHead& head, int depth) {
  const uint32_t dims = from.u8();
  if (dims > kMostTypeDims) from.fail("an array type has too many dims");
  if (head.version < 3) from.skip(3);
  Shape shape;
  for (uint32_t d = 0; d < dims; ++d) shape.push_back(static_cast<int64_t>(from.u32()));
  if (head.version < 3) from.skip(4 * size_t{dims});
  Hdf5Type type = read_hdf5_type(from, file, depth + 1);
  if (type.kind != Hdf5Kind::number) return unreadable(head, "has arrays of values other than numbers");
  shape.insert(shape.end(), type.shape.begin(), type.shape.end());
  if (capped_product(capped_product(shape), byte_size(type.element)) != static_cast<int64_t>(head.bytes))
    from.fail("an array type has a different size than its elements");
  type.shape = std::move(shape);
  type.bytes = head.bytes;
  return type;
}

Hdf5Type variable_type(Hdf5Cursor& from, const Hdf5Bytes& file, const TypeHead& head, int depth) {
  Hdf5Type of = read_hdf5_type(from, file, depth + 1);
  const bool is_text = (head.bits & 0xF) == 1;
  if (head.bytes != 8 + file.address_bytes) from.fail("a reference to the heap has a wrong size");
  if (!is_text && (of.kind != Hdf5Kind::number || !of.shape.empty()))
    return unreadable(head, "has lists of values other than numbers");
  of.kind = is_text ? Hdf5Kind::texts : Hdf5Kind::lists;
  of.bytes = head.bytes;
  return of;
}

}  // namespace

Hdf5Type read_hdf5_type(Hdf5Cursor& from, const Hdf5Bytes& file, int depth) {
  if (depth > kMostTypeDepth) from.fail("types are nested too deeply");
  const uint8_t first = from.u8();
  TypeHead head{first >> 4, static_cast<uint32_t>(from.number(3)), 0};
  head.bytes = from.u32();
  if (head.bytes == 0) from.fail("a type has no bytes");
  Hdf5Type type;
  switch (first & 0xF) {
    case 0:
      return integer_type(from, head);
    case 1:
      return float_type(from, head);
    case 2:
      from.skip(2);
      return unreadable(head, "has values of the class time");
    case 3:
      type = {Hdf5Kind::fixed_text, head.bytes};
      type.is_space_padded = (head.bits & 0xF) == 2;
      return type;
    case 4:
      from.skip(4);
      return unreadable(head, "has bit fields");
    case 5:
      from.skip(head.bits & 0xFF);
      return {Hdf5Kind::opaque, head.bytes};
    case 6:
      return compound_type(from, file, head, depth);
    case 7:
      return unreadable(head, "has references to other objects");
    case 8:
      return enum_type(from, file, head, depth);
    case 9:
      return variable_type(from, file, head, depth);
    case 10:
      return array_type(from, file, head, depth);
    default:
      return unreadable(head, fmt::format("has values of the class {}", first & 0xF));
  }
}

}  // namespace trainctl
