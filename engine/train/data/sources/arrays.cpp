// See the header.
#include "engine/train/data/sources/arrays.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <optional>
#include <set>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/sources/array_source.h"
#include "engine/train/data/sources/file_list.h"
#include "engine/train/data/sources/npy_header.h"
#include "engine/train/data/sources/zip_directory.h"
#include "engine/train/files/input_file.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

/// An array of a file, all of it.
struct WholeArray {
  std::string name;  ///< in the file
  StoredElement stored = StoredElement::u8;
  Shape shape;
  int64_t data_at = 0;
  std::shared_ptr<const std::vector<uint8_t>> bytes;  ///< not null: the data are here, from data_at on
};

/// Joins an array to those of the column. `from` names it in errors.
void append(ArrayColumn& column, WholeArray array, size_t file, const std::string& from) {
  if (array.shape.empty())
    throw SpecError({}, "dataset.fields." + column.name, from + " is one number",
                    "an array whose first dim counts samples");
  if (std::find(array.shape.begin(), array.shape.end(), 0) != array.shape.end())
    throw SpecError({}, "dataset.fields." + column.name, from + " is empty: " + to_string(array.shape),
                    "another array");
  const Shape sample(array.shape.begin() + 1, array.shape.end());
  if (column.pieces.empty()) {
    column.stored = array.stored;
    column.shape = sample;
  } else if (column.stored != array.stored || column.shape != sample) {
    throw SpecError(
        {}, "dataset.fields." + column.name,
        fmt::format("{} has samples of {} {}, but the files before have {} {}", from, to_string(array.stored),
                    to_string(sample), to_string(column.stored), to_string(column.shape)),
        "arrays that differ in their first dim alone");
  }
  column.pieces.push_back(
      {file, std::move(array.bytes), array.data_at, num_elements(sample) * byte_size(array.stored), array.shape[0]});
}

std::vector<uint8_t> read_part(const InputFile& file, int64_t at, int64_t bytes) {
  std::vector<uint8_t> part(static_cast<size_t>(bytes));
  file.read(at, part);
  return part;
}

/// The .npy that has `bytes` bytes at a place of the file.
WholeArray npy_at(const InputFile& file, int64_t at, int64_t bytes, const std::string& shown) {
  NpyHeader header = parse_npy_header(read_part(file, at, std::min(bytes, kNpyHeaderBytes)), bytes, shown);
  return {{}, header.stored, std::move(header.shape), at + header.data_at, nullptr};
}

bool has_suffix(const std::string& name, const std::string& wanted) {
  return name == wanted || name == wanted + ".npy";
}

/// The members of one file that hold the wanted arrays; all of them if `wanted` is empty.
std::vector<ZipEntry> npz_entries(const InputFile& file, const std::vector<ArrayField>& wanted) {
  const std::vector<uint8_t> tail =
      read_part(file, std::max<int64_t>(0, file.bytes() - kZipTailBytes), std::min(file.bytes(), kZipTailBytes));
  const ZipDirectory directory = find_zip_directory(tail, file.bytes(), file.path());
  std::vector<ZipEntry> entries =
      parse_zip_directory(read_part(file, directory.at, directory.bytes), directory, file.path());
  std::erase_if(entries, [&](const ZipEntry& entry) {
    return !wanted.empty() && std::none_of(wanted.begin(), wanted.end(), [&](const ArrayField& field) {
      return has_suffix(entry.name, field.array);
    });
  });
  std::set<std::string> names;
  for (const ZipEntry& entry : entries)
    if (!names.insert(entry.name).second)
      throw EnvError(fmt::format("{}: has two members '{}'; write the file again", file.path(),
                                 printable(shortened(entry.name))));
  return entries;
}

int64_t member_data_at(const InputFile& file, const ZipEntry& entry) {
  const auto local = read_part(file, entry.local_at, std::min(kZipLocalBytes, file.bytes() - entry.local_at));
  return zip_data_at(local, entry, file.bytes(), file.path());
}

void check_stored(const InputFile& file, const ZipEntry& entry) {
  constexpr int64_t kAtOnce = int64_t{4} << 20;
  const int64_t at = member_data_at(file, entry);
  uLong crc = 0;
  for (int64_t done = 0; done < entry.bytes; done += kAtOnce) {
    const std::vector<uint8_t> part = read_part(file, at + done, std::min(kAtOnce, entry.bytes - done));
    crc = crc32_z(crc, part.data(), part.size());
  }
  require_zip_checksum(entry, static_cast<uint32_t>(crc), file.path());
}

/// The wanted arrays of one file.
std::vector<WholeArray> npz_arrays(const InputFile& file, const std::vector<ArrayField>& wanted) {
  std::vector<WholeArray> arrays;
  const std::vector<ZipEntry> entries = npz_entries(file, wanted);
  require_may_inflate(entries, file.bytes(), file.path());
  for (const ZipEntry& entry : entries) {
    const std::string shown = file.path() + ": " + entry.name;
    const int64_t data_at = member_data_at(file, entry);
    WholeArray array;
    if (entry.is_deflated) {
      const std::vector<uint8_t> packed = read_part(file, data_at, entry.packed_bytes);
      array.bytes = std::make_shared<const std::vector<uint8_t>>(inflate_zip_entry(packed, entry, file.path()));
      const auto start =
          std::span(*array.bytes).first(std::min(array.bytes->size(), static_cast<size_t>(kNpyHeaderBytes)));
      NpyHeader header = parse_npy_header(start, entry.bytes, shown);
      array.stored = header.stored;
      array.shape = std::move(header.shape);
      array.data_at = header.data_at;
    } else {
      array = npy_at(file, data_at, entry.bytes, shown);
    }
    array.name = entry.name.ends_with(".npy") ? entry.name.substr(0, entry.name.size() - 4) : entry.name;
    arrays.push_back(std::move(array));
  }
  return arrays;
}

std::optional<StoredElement> stored_element(StoredType type) {
  switch (type) {
    case StoredType::boolean:
      return StoredElement::boolean;
    case StoredType::u8:
      return StoredElement::u8;
    case StoredType::i8:
      return StoredElement::i8;
    case StoredType::u16:
      return StoredElement::u16;
    case StoredType::i16:
      return StoredElement::i16;
    case StoredType::i32:
      return StoredElement::i32;
    case StoredType::u32:
      return StoredElement::u32;
    case StoredType::i64:
      return StoredElement::i64;
    case StoredType::f16:
      return StoredElement::f16;
    case StoredType::bf16:
      return StoredElement::bf16;
    case StoredType::f32:
      return StoredElement::f32;
    case StoredType::f64:
      return StoredElement::f64;
    default:
      return {};
  }
}

std::vector<WholeArray> safetensors_arrays(const InputFile& file, const std::vector<ArrayField>& wanted) {
  const SafetensorsFile tensors(file.path());
  std::vector<WholeArray> arrays;
  for (const SafetensorsEntry& entry : tensors.header().entries) {
    const bool is_wanted = wanted.empty() || std::any_of(wanted.begin(), wanted.end(), [&](const ArrayField& field) {
                             return field.array == entry.name;
                           });
    if (!is_wanted) continue;
    const auto stored = stored_element(entry.type);
    if (!stored)
      throw SpecError({}, "dataset.fields",
                      fmt::format("{}: '{}' has elements of {}, which are not read", file.path(), entry.name,
                                  to_string(entry.type)),
                      "name the tensors to read in dataset.fields, or store them as F32");
    arrays.push_back({entry.name, *stored, entry.shape, tensors.header().data_at + entry.begin, nullptr});
  }
  return arrays;
}

template <class ArraysOf>
std::unique_ptr<Source> open_array_files(const ArrayFileOptions& options, ArraysOf&& arrays_of) {
  auto files = std::make_unique<OpenFiles>(list_files(options.paths, "dataset.path"));
  std::vector<ArrayField> fields = options.fields;
  std::vector<ArrayColumn> columns;
  for (size_t f = 0; f < files->size(); ++f) {
    const auto file = files->get(f);
    std::vector<WholeArray> arrays = arrays_of(*file, fields);
    std::vector<std::string> names;
    for (const WholeArray& array : arrays) names.push_back(array.name);
    if (fields.empty())
      for (const std::string& name : names) fields.push_back({name, name});
    columns.resize(fields.size());
    for (size_t c = 0; c < fields.size(); ++c) {
      columns[c].name = fields[c].name;
      const auto found = std::find_if(arrays.begin(), arrays.end(), [&](const WholeArray& array) {
        return array.name == fields[c].array || has_suffix(fields[c].array, array.name);
      });
      if (found == arrays.end())
        throw SpecError({}, "dataset.fields." + fields[c].name,
                        fmt::format("{} has no array '{}'", file->path(), fields[c].array),
                        "other files of the set, or another name");
      append(columns[c], *found, f, file->path() + ": " + found->name);
    }
  }
  return make_array_source(std::move(files), std::move(columns));
}

}  // namespace

std::unique_ptr<Source> open_npy(const NpyOptions& options) {
  std::vector<std::string> paths;
  std::vector<ArrayColumn> columns;
  for (const NpyField& field : options.fields) {
    columns.push_back({field.name, StoredElement::u8, {}, {}});
    for (const std::string& path : list_files(field.paths, "dataset.fields." + field.name)) {
      const InputFile file(path);
      append(columns.back(), npy_at(file, 0, file.bytes(), path), paths.size(), path);
      paths.push_back(path);
    }
  }
  return make_array_source(std::make_unique<OpenFiles>(std::move(paths)), std::move(columns));
}

std::unique_ptr<Source> open_npz(const ArrayFileOptions& options) { return open_array_files(options, npz_arrays); }

void check_npz(const ArrayFileOptions& options) {
  for (const std::string& path : list_files(options.paths, "dataset.path")) {
    const InputFile file(path);
    for (const ZipEntry& entry : npz_entries(file, options.fields))
      if (!entry.is_deflated) check_stored(file, entry);
  }
}

std::unique_ptr<Source> open_safetensors(const ArrayFileOptions& options) {
  return open_array_files(options, safetensors_arrays);
}

}  // namespace trainctl
