// Values of arrays in Arrow's C data interface.
#include "engine/train/data/tables/arrow_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"

namespace trainctl {
namespace {

using ArrowJson = nlohmann::ordered_json;

constexpr int kMostArrowDepth = 32;

[[noreturn]] void fail_arrow(const char* what) {
  throw EnvError(fmt::format("is damaged: {}; get the file again", what));
}

std::string_view format_of(const ArrowSchema& schema) { return schema.format == nullptr ? "" : schema.format; }

struct ArrowNumber {
  StoredElement element;
  int64_t bytes;
};

/// The numbers that a type of Arrow's format string has; null for other types. 'L' (u64) is read as i64, dates and
/// times as their integers.
std::optional<ArrowNumber> arrow_number(std::string_view format) {
  if (format.size() == 1) {
    switch (format[0]) {
      case 'b':
        return ArrowNumber{StoredElement::boolean, 0};
      case 'c':
        return ArrowNumber{StoredElement::i8, 1};
      case 'C':
        return ArrowNumber{StoredElement::u8, 1};
      case 's':
        return ArrowNumber{StoredElement::i16, 2};
      case 'S':
        return ArrowNumber{StoredElement::u16, 2};
      case 'i':
        return ArrowNumber{StoredElement::i32, 4};
      case 'I':
        return ArrowNumber{StoredElement::u32, 4};
      case 'l':
      case 'L':
        return ArrowNumber{StoredElement::i64, 8};
      case 'e':
        return ArrowNumber{StoredElement::f16, 2};
      case 'f':
        return ArrowNumber{StoredElement::f32, 4};
      case 'g':
        return ArrowNumber{StoredElement::f64, 8};
      default:
        return {};
    }
  }
  if (format == "tdD" || format == "tts" || format == "ttm") return ArrowNumber{StoredElement::i32, 4};
  if (format.starts_with("t") && format != "tiD" && format != "tin") return ArrowNumber{StoredElement::i64, 8};
  return {};
}

bool is_arrow_text(std::string_view format) { return format == "u" || format == "U" || format == "vu"; }
bool is_arrow_bytes(std::string_view format) {
  return format == "z" || format == "Z" || format == "vz" || format.starts_with("w:");
}
bool is_list(std::string_view format) { return format == "+l" || format == "+L" || format.starts_with("+w:"); }

int64_t number_after_colon(std::string_view format) {
  const std::string_view digits = format.substr(format.find(':') + 1);
  int64_t value = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (value < 0) fail_arrow("a type has no size");
  return value;
}

const uint8_t* buffer(const ArrowArray& array, int64_t number) {
  if (number >= array.n_buffers) fail_arrow("a buffer is missing");
  return static_cast<const uint8_t*>(array.buffers[number]);
}

bool bit_at(const uint8_t* bits, int64_t index) { return (bits[index / 8] >> (index % 8) & 1) != 0; }

bool is_null_at(const ArrowSchema& schema, const ArrowArray& array, int64_t index) {
  if (format_of(schema) == "n") return true;
  if (array.n_buffers == 0 || array.null_count == 0) return false;
  const uint8_t* valid = buffer(array, 0);
  return valid != nullptr && !bit_at(valid, array.offset + index);
}

template <class T>
T element_at(const uint8_t* buffer, int64_t index) {
  T value;
  std::memcpy(&value, buffer + index * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

/// [begin, end) of an entry; both are below the offset at the array's end, which the library has checked.
template <class T>
std::pair<int64_t, int64_t> extent(const ArrowArray& array, int64_t index) {
  const uint8_t* offsets = buffer(array, 1);
  if (offsets == nullptr) fail_arrow("offsets are missing");
  const int64_t begin = element_at<T>(offsets, array.offset + index);
  const int64_t end = element_at<T>(offsets, array.offset + index + 1);
  const int64_t most = element_at<T>(offsets, array.offset + array.length);
  if (begin < 0 || begin > end || end > most) fail_arrow("offsets do not ascend");
  return {begin, end};
}

std::string_view view_at(const ArrowArray& array, int64_t index) {
  constexpr int32_t kInline = 12;
  const uint8_t* views = buffer(array, 1);
  if (views == nullptr) fail_arrow("views are missing");
  const uint8_t* view = views + (array.offset + index) * 16;
  const auto size = element_at<int32_t>(view, 0);
  if (size < 0) fail_arrow("a view has a negative size");
  if (size <= kInline) return {reinterpret_cast<const char*>(view + 4), static_cast<size_t>(size)};
  const auto number = element_at<int32_t>(view, 2), at = element_at<int32_t>(view, 3);
  const int64_t buffers = array.n_buffers - 3;  // validity, views, and at the end the sizes
  if (number < 0 || number >= buffers || at < 0) fail_arrow("a view refers to no buffer");
  const auto bytes = element_at<int64_t>(buffer(array, array.n_buffers - 1), number);
  if (int64_t{at} + size > bytes) fail_arrow("a view exceeds its buffer");
  return {reinterpret_cast<const char*>(buffer(array, 2 + number)) + at, static_cast<size_t>(size)};
}

std::string_view bytes_at(std::string_view format, const ArrowArray& array, int64_t index) {
  if (format.starts_with("v")) return view_at(array, index);
  if (format.starts_with("w:")) {
    const int64_t width = number_after_colon(format);
    return {reinterpret_cast<const char*>(buffer(array, 1)) + (array.offset + index) * width,
            static_cast<size_t>(width)};
  }
  const auto [begin, end] =
      format == "U" || format == "Z" ? extent<int64_t>(array, index) : extent<int32_t>(array, index);
  if (begin == end) return {};
  return {reinterpret_cast<const char*>(buffer(array, 2)) + begin, static_cast<size_t>(end - begin)};
}

const ArrowArray& child(const ArrowArray& array, int64_t number) {
  if (number >= array.n_children || array.children[number] == nullptr) fail_arrow("a child is missing");
  return *array.children[number];
}

/// [begin, end) of a list in its child.
std::pair<int64_t, int64_t> list_extent(std::string_view format, const ArrowArray& array, int64_t index) {
  std::pair<int64_t, int64_t> part;
  if (format.starts_with("+w:")) {
    const int64_t width = number_after_colon(format);
    part = {(array.offset + index) * width, (array.offset + index + 1) * width};
  } else {
    part = format == "+L" ? extent<int64_t>(array, index) : extent<int32_t>(array, index);
  }
  if (part.second > child(array, 0).length) fail_arrow("a list exceeds its values");
  return part;
}

int64_t dictionary_index(const ArrowSchema& schema, const ArrowArray& array, int64_t index) {
  const std::optional<ArrowNumber> type = arrow_number(format_of(schema));
  const uint8_t* indices = buffer(array, 1);
  if (!type || indices == nullptr || array.dictionary == nullptr) fail_arrow("a dictionary is missing");
  const int64_t at = array.offset + index;
  int64_t place = -1;
  if (type->bytes == 1)
    place = format_of(schema) == "c" ? element_at<int8_t>(indices, at) : element_at<uint8_t>(indices, at);
  if (type->bytes == 2)
    place = format_of(schema) == "s" ? element_at<int16_t>(indices, at) : element_at<uint16_t>(indices, at);
  if (type->bytes == 4)
    place = format_of(schema) == "i" ? element_at<int32_t>(indices, at) : int64_t{element_at<uint32_t>(indices, at)};
  if (type->bytes == 8) place = element_at<int64_t>(indices, at);
  if (place < 0 || place >= array.dictionary->length) fail_arrow("an index exceeds its dictionary");
  return place;
}

void append_elements(const ArrowSchema& schema, const ArrowArray& array, int64_t begin, int64_t end,
                     std::vector<uint8_t>& out) {
  const std::string_view format = format_of(schema);
  const ArrowNumber type = *arrow_number(format);
  if (begin == end) return;
  if (array.null_count != 0)
    for (int64_t i = begin; i < end; ++i)
      if (is_null_at(schema, array, i)) throw EnvError("a list has an element that is null");
  const uint8_t* values = buffer(array, 1);
  if (values == nullptr) fail_arrow("values are missing");
  const size_t at = out.size();
  if (type.element == StoredElement::boolean) {
    for (int64_t i = begin; i < end; ++i) out.push_back(bit_at(values, array.offset + i) ? 1 : 0);
    return;
  }
  const auto count = static_cast<size_t>((end - begin) * type.bytes);
  out.resize(at + count);
  std::memcpy(out.data() + at, values + (array.offset + begin) * type.bytes, count);
  if (format != "L") return;
  for (size_t i = at; i < out.size(); i += 8)
    if ((out[i + 7] & 0x80) != 0) throw EnvError("a number exceeds 63 bits, which is not supported");
}

/// Appends a list of numbers to the value, and its shape from dim `dim` on. `is_first` is true as long as the shape is
/// not known.
void append_list(const ArrowSchema& schema, const ArrowArray& array, int64_t index, size_t dim, TableValue& out) {
  const auto [begin, end] = list_extent(format_of(schema), array, index);
  const ArrowSchema& of = *schema.children[0];
  const ArrowArray& values = child(array, 0);
  if (out.shape.size() <= dim)
    out.shape.push_back(end - begin);
  else if (out.shape[dim] != end - begin)
    throw EnvError("the inner lists differ in their lengths");
  if (!is_list(format_of(of))) return append_elements(of, values, begin, end, out.bytes);
  for (int64_t i = begin; i < end; ++i) {
    if (is_null_at(of, values, i)) throw EnvError("a list has an element that is null");
    append_list(of, values, i, dim + 1, out);
  }
}

/// The child that has the bytes of an image or a sound, and -1 for other structures.
int64_t bytes_child(const ArrowSchema& schema) {
  if (format_of(schema) != "+s") return -1;
  for (int64_t c = 0; c < schema.n_children; ++c)
    if (std::string_view(schema.children[c]->name) == "bytes" && is_arrow_bytes(format_of(*schema.children[c])))
      return c;
  return -1;
}

ArrowJson json_at(const ArrowSchema& schema, const ArrowArray& array, int64_t index, int depth);

ArrowJson json_number(const ArrowSchema& schema, const ArrowArray& array, int64_t index) {
  std::vector<uint8_t> bytes;
  append_elements(schema, array, index, index + 1, bytes);
  const ArrowNumber type = *arrow_number(format_of(schema));
  switch (type.element) {
    case StoredElement::boolean:
      return bytes[0] != 0;
    case StoredElement::f64:
      return element_at<double>(bytes.data(), 0);
    case StoredElement::f32:
      return element_at<float>(bytes.data(), 0);
    case StoredElement::f16: {
      FieldBytes wide;
      convert(StoredElement::f16, bytes, wide);
      return element_at<float>(reinterpret_cast<const uint8_t*>(wide.data()), 0);
    }
    case StoredElement::i64:
      return element_at<int64_t>(bytes.data(), 0);
    default:
      break;
  }
  FieldBytes wide;
  convert(type.element, bytes, wide);
  const auto* at = reinterpret_cast<const uint8_t*>(wide.data());
  switch (element_type(type.element)) {
    case ElementType::u8:
      return at[0];
    case ElementType::u16:
      return element_at<uint16_t>(at, 0);
    case ElementType::i64:
      return element_at<int64_t>(at, 0);
    default:
      return element_at<int32_t>(at, 0);
  }
}

ArrowJson json_object(const ArrowSchema& schema, const ArrowArray& array, int64_t index, int depth) {
  ArrowJson object = ArrowJson::object();
  for (int64_t c = 0; c < schema.n_children; ++c)
    object[schema.children[c]->name] = json_at(*schema.children[c], child(array, c), array.offset + index, depth + 1);
  return object;
}

ArrowJson json_at(const ArrowSchema& schema, const ArrowArray& array, int64_t index, int depth) {
  if (depth > kMostArrowDepth) fail_arrow("values are nested too deeply");
  if (index < 0 || index >= array.length) fail_arrow("an array is too short");
  if (is_null_at(schema, array, index)) return nullptr;
  if (schema.dictionary != nullptr)
    return json_at(*schema.dictionary, *array.dictionary, dictionary_index(schema, array, index), depth + 1);
  const std::string_view format = format_of(schema);
  if (arrow_number(format)) return json_number(schema, array, index);
  if (is_arrow_text(format) || is_arrow_bytes(format)) return std::string(bytes_at(format, array, index));
  if (format == "+s") return json_object(schema, array, index, depth);
  if (!is_list(format) && format != "+m")
    throw EnvError(fmt::format("has values of the type {}, which are not supported", format));
  const auto [begin, end] = list_extent(format == "+m" ? "+l" : format, array, index);
  ArrowJson list = ArrowJson::array();
  for (int64_t i = begin; i < end; ++i) list.push_back(json_at(*schema.children[0], child(array, 0), i, depth + 1));
  return list;
}

}  // namespace

TableColumn arrow_column(const ArrowSchema& schema) {
  TableColumn column{schema.name == nullptr ? "" : schema.name, ColumnKind::nested};
  if (schema.dictionary != nullptr) {
    TableColumn values = arrow_column(*schema.dictionary);
    values.name = column.name;
    return values;
  }
  const ArrowSchema* at = &schema;
  while (is_list(format_of(*at)) && at->n_children == 1 && at->children[0]->dictionary == nullptr) {
    column.shape.push_back(format_of(*at).starts_with("+w:") ? number_after_colon(format_of(*at)) : -1);
    at = at->children[0];
  }
  const std::string_view format = format_of(*at);
  if (const std::optional<ArrowNumber> number = arrow_number(format)) {
    column.kind = ColumnKind::number;
    column.element = number->element;
    return column;
  }
  column.shape.clear();
  if (at != &schema) return column;
  if (is_arrow_text(format)) column.kind = ColumnKind::text;
  if (is_arrow_bytes(format) || bytes_child(schema) >= 0) column.kind = ColumnKind::bytes;
  return column;
}

void read_arrow_value(const ArrowSchema& schema, const ArrowArray& array, int64_t index, const TableColumn& column,
                      TableValue& out) {
  out.is_null = true;
  out.shape.clear();
  out.bytes.clear();
  if (index < 0 || index >= array.length) fail_arrow("an array is too short");
  if (is_null_at(schema, array, index)) return;
  if (schema.dictionary != nullptr)
    return read_arrow_value(*schema.dictionary, *array.dictionary, dictionary_index(schema, array, index), column, out);
  const std::string_view format = format_of(schema);
  if (column.kind == ColumnKind::nested) {
    out.set_bytes(arrow_json(schema, array, index).dump(-1, ' ', false, ArrowJson::error_handler_t::replace));
    return;
  }
  out.is_null = false;
  if (column.kind == ColumnKind::number) {
    if (is_list(format))
      append_list(schema, array, index, 0, out);
    else
      append_elements(schema, array, index, index + 1, out.bytes);
    return;
  }
  if (const int64_t place = bytes_child(schema); place >= 0) {
    const ArrowArray& bytes = child(array, place);
    const int64_t at = array.offset + index;
    if (at >= bytes.length) fail_arrow("an array is too short");
    if (is_null_at(*schema.children[place], bytes, at))
      throw EnvError(
          "has the path of a file instead of its bytes; embed the files, for example with "
          "datasets.Dataset.map or save_to_disk after cast_column");
    return out.set_bytes(bytes_at(format_of(*schema.children[place]), bytes, at));
  }
  out.set_bytes(bytes_at(format, array, index));
}

ArrowJson arrow_json(const ArrowSchema& schema, const ArrowArray& array, int64_t index) {
  return json_at(schema, array, index, 0);
}

std::string arrow_metadata(const ArrowSchema& schema, std::string_view key) {
  const char* at = schema.metadata;
  if (at == nullptr) return {};
  const auto next_number = [&] {
    int32_t value = 0;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  };
  const auto next_text = [&] {
    const int32_t size = next_number();
    const std::string_view text(at, static_cast<size_t>(std::max(size, 0)));
    at += text.size();
    return text;
  };
  for (int32_t i = next_number(); i > 0; --i) {
    const std::string_view name = next_text(), value = next_text();
    if (name == key) return std::string(value);
  }
  return {};
}

}  // namespace trainctl
