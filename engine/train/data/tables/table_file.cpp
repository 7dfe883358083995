// A file with a table: rows that have the same named columns.
#include "engine/train/data/tables/table_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/data/tables/arrow_file.h"
#include "engine/train/data/tables/formats.h"
#include "engine/train/data/tables/hugging_face.h"
#include "engine/train/data/tables/mds.h"
#include "engine/train/data/tables/megatron.h"
#include "engine/train/data/tables/plain_text.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

struct TableFormat {
  const char* suffix;
  std::unique_ptr<TableFile> (*open)(const std::string& path);
};
constexpr TableFormat kTableFormats[] = {
    {".jsonl", open_json_lines},
    {".jsonl.gz", open_json_lines},
    {".jsonl.zst", open_json_lines},
    {".ndjson", open_json_lines},
    {".parquet", open_arrow_file},
    {".arrow", open_arrow_file},
    {".feather", open_arrow_file},
    {".tfrecord", open_tfrecord},
    {".tfrecords", open_tfrecord},
    {".tfrecord.gz", open_tfrecord},
    {".tfrecords.gz", open_tfrecord},
    {".mdb", open_lmdb},
    {".lmdb", open_lmdb},
    {".idx", open_megatron},
    {".h5", open_hdf5},
    {".hdf5", open_hdf5},
};

/// TensorFlow writes mnist.tfrecord-00000-of-00010.
std::string without_shard_number(std::string path) {
  constexpr std::string_view kOf = "-of-", kDigits = "0123456789";
  const size_t of = path.rfind(kOf);
  if (of == std::string::npos || path.find_first_not_of(kDigits, of + kOf.size()) != std::string::npos) return path;
  const size_t dash = path.find_last_not_of(kDigits, of - 1);
  if (dash != std::string::npos && path[dash] == '-') path.resize(dash);
  return path;
}

const TableFormat* format_of_name(const std::string& address) {
  // A signed address has a query after the name.
  const std::string path = without_shard_number(shown_url(address));
  if (path.ends_with(".tar.idx")) return nullptr;  // an index of a tar shard
  const auto* found = std::find_if(std::begin(kTableFormats), std::end(kTableFormats),
                                   [&](const TableFormat& format) { return path.ends_with(format.suffix); });
  return found == std::end(kTableFormats) ? nullptr : found;
}

bool is_mds_index(const std::string& path) { return fs::path(path).filename() == kMdsIndexName; }

/// One element as a JSON number.
nlohmann::ordered_json number_at(StoredElement element, const uint8_t* at) {
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (element) {
    case StoredElement::boolean:
      return load(uint8_t{}) != 0;
    case StoredElement::u8:
      return load(uint8_t{});
    case StoredElement::i8:
      return load(int8_t{});
    case StoredElement::u16:
      return load(uint16_t{});
    case StoredElement::i16:
      return load(int16_t{});
    case StoredElement::i32:
      return load(int32_t{});
    case StoredElement::u32:
      return load(uint32_t{});
    case StoredElement::i64:
      return load(int64_t{});
    case StoredElement::f64: {
      const double value = load(double{});
      constexpr double kWhole = 9007199254740992.0;  // 2^53
      if (std::trunc(value) == value && std::abs(value) < kWhole) return static_cast<int64_t>(value);
      return value;
    }
    default:
      break;
  }
  FieldBytes wide;
  convert(element, {at, static_cast<size_t>(byte_size(element))}, wide);
  float value = 0;
  if (element == StoredElement::bf16) {
    uint16_t high = 0;
    std::memcpy(&high, at, sizeof high);
    const uint32_t bits = uint32_t{high} << 16;
    std::memcpy(&value, &bits, sizeof value);
  } else {
    std::memcpy(&value, wide.data(), sizeof value);
  }
  return value;
}

nlohmann::ordered_json numbers_from(StoredElement element, const Shape& shape, size_t dim, const uint8_t*& at) {
  if (dim == shape.size()) {
    auto value = number_at(element, at);
    at += byte_size(element);
    return value;
  }
  auto list = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < shape[dim]; ++i) list.push_back(numbers_from(element, shape, dim + 1, at));
  return list;
}

}  // namespace

std::string_view to_string(ColumnKind kind) {
  constexpr std::string_view kNames[] = {"number", "text", "bytes", "json", "nested"};
  return kNames[static_cast<size_t>(kind)];
}

std::string TableColumn::type_text() const {
  if (kind != ColumnKind::number) return std::string(to_string(kind));
  std::string text = is_untyped ? "number" : std::string(to_string(element));
  if (shape.empty()) return text;
  std::vector<std::string> dims;
  for (const int64_t dim : shape) dims.push_back(dim < 0 ? "?" : std::to_string(dim));
  return text + " [" + join(dims) + "]";
}

int TableFile::find(std::string_view column) const {
  for (size_t c = 0; c < columns().size(); ++c)
    if (columns()[c].name == column) return static_cast<int>(c);
  return -1;
}

std::string TableFile::json(int64_t row, const std::vector<std::string>& names) const {
  std::vector<size_t> chosen;
  for (size_t c = 0; c < columns().size(); ++c)
    if (names.empty() || std::find(names.begin(), names.end(), columns()[c].name) != names.end()) chosen.push_back(c);
  std::vector<TableValue> values(chosen.size());
  read(row, chosen, values);
  auto object = nlohmann::ordered_json::object();
  for (size_t i = 0; i < chosen.size(); ++i) {
    const TableColumn& column = columns()[chosen[i]];
    nlohmann::ordered_json& to = object[column.name];
    if (values[i].is_null) continue;
    if (column.kind == ColumnKind::number) {
      const uint8_t* at = values[i].bytes.data();
      to = numbers_from(column.element, values[i].shape, 0, at);
    } else if (column.kind == ColumnKind::json) {
      to = nlohmann::ordered_json::parse(values[i].text(), nullptr, false);
      if (to.is_discarded() || !is_shallow_json(values[i].text()))
        throw EnvError(where(row) + ": '" + printable(column.name) + "' is not JSON");
    } else {
      to = std::string(values[i].text());
    }
  }
  try {
    return object.dump();
  } catch (const nlohmann::json::exception&) {
    throw EnvError(where(row) + ": contains bytes that are not UTF-8 text");
  }
}

bool is_table_file(const std::string& path) { return format_of_name(path) != nullptr || is_mds_index(path); }

std::unique_ptr<TableFile> open_table_file(const std::string& path) {
  if (is_mds_index(path)) return open_mds(path);
  const TableFormat* format = format_of_name(path);
  check(format != nullptr, "only tables are opened as such");
  return format->open(path);
}

std::vector<std::string> table_file_parts(const std::string& path) {
  return is_mds_index(path) ? mds_parts(path) : std::vector<std::string>{path};
}

std::vector<std::string> table_files_of_folder(const std::string& folder) {
  const fs::path at(folder);
  if (is_hugging_face_folder(folder)) return hugging_face_files(folder);
  for (const char* name : {kMdsIndexName, "data.mdb"})
    if (path_exists((at / name).string())) return {(at / name).string()};
  return parquet_files_of(folder);
}

}  // namespace trainctl
