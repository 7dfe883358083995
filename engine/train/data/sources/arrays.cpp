// Arrays whose first dim counts samples: files of NumPy, and of safetensors.
#include "engine/train/data/sources/arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/sources/array_source.h"
#include "engine/train/data/sources/file_list.h"
#include "engine/train/data/sources/npy_header.h"
#include "engine/train/data/sources/zip_file.h"
#include "engine/train/files/input_file.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

/// A complete array of a file.
struct WholeArray {
  std::string name;  ///< in the file
  StoredElement stored = StoredElement::u8;
  Shape shape;
  int64_t data_at = 0;
  std::shared_ptr<const std::vector<uint8_t>> bytes;  ///< not null: the data are here, from data_at on
};

/// Appends an array to the arrays of the column. `from` names the array in errors.
void append(ArrayColumn& column, WholeArray array, size_t file, const std::string& from) {
  if (array.shape.empty())
    throw SpecError({}, "dataset.fields." + column.name, from + " is a scalar",
                    "use an array whose first dim counts the samples");
  if (std::find(array.shape.begin(), array.shape.end(), 0) != array.shape.end())
    throw SpecError({}, "dataset.fields." + column.name, from + " is empty: " + to_string(array.shape),
                    "use an array that is not empty");
  const Shape sample(array.shape.begin() + 1, array.shape.end());
  if (column.pieces.empty()) {
    column.stored = array.stored;
    column.shape = sample;
  } else if (column.stored != array.stored || column.shape != sample) {
    throw SpecError(
        {}, "dataset.fields." + column.name,
        fmt::format("{} has samples of {} {}, but the previous files have {} {}", from, to_string(array.stored),
                    to_string(sample), to_string(column.stored), to_string(column.shape)),
        "the arrays of all files may differ only in their first dim");
  }
  column.pieces.push_back(
      {file, std::move(array.bytes), array.data_at, num_elements(sample) * byte_size(array.stored), array.shape[0]});
}

std::vector<uint8_t> read_part(const InputFile& file, int64_t at, int64_t bytes) {
  std::vector<uint8_t> part(static_cast<size_t>(bytes));
  file.read(at, part);
  return part;
}

/// The array of the .npy that has `bytes` bytes from offset `at` of the file on.
WholeArray npy_at(const InputFile& file, int64_t at, int64_t bytes, const std::string& shown) {
  NpyHeader header = parse_npy_header(read_part(file, at, std::min(bytes, kNpyHeaderBytes)), bytes, shown);
  return {{}, header.stored, std::move(header.shape), at + header.data_at, nullptr};
}

bool has_suffix(const std::string& name, const std::string& wanted) {
  return name == wanted || name == wanted + ".npy";
}

/// The members of one file that hold the wanted arrays; all of them if `wanted` is empty.
std::vector<ZipMember> npz_members(const ZipFile& zip, const std::vector<ArrayField>& wanted, const std::string& file) {
  std::vector<ZipMember> members = zip.members();
  std::erase_if(members, [&](const ZipMember& member) {
    return !wanted.empty() && std::none_of(wanted.begin(), wanted.end(), [&](const ArrayField& field) {
      return has_suffix(member.name, field.array);
    });
  });
  std::set<std::string> names;
  for (const ZipMember& member : members)
    if (!names.insert(member.name).second)
      throw EnvError(
          fmt::format("{}: contains '{}' twice; write the file again", file, printable(shortened(member.name))));
  return members;
}

/// The .npy that a deflated member contains.
WholeArray npy_in_memory(std::vector<uint8_t> bytes, const std::string& shown) {
  const auto start = std::span(bytes).first(std::min(bytes.size(), static_cast<size_t>(kNpyHeaderBytes)));
  NpyHeader header = parse_npy_header(start, static_cast<int64_t>(bytes.size()), shown);
  return {{},
          header.stored,
          std::move(header.shape),
          header.data_at,
          std::make_shared<const std::vector<uint8_t>>(std::move(bytes))};
}

/// The wanted arrays of one file.
std::vector<WholeArray> npz_arrays(const InputFile& file, const std::vector<ArrayField>& wanted) {
  ZipFile zip(file);
  const std::vector<ZipMember> members = npz_members(zip, wanted, file.path());
  require_may_inflate(members, file.bytes(), file.path());
  std::vector<WholeArray> arrays;
  for (const ZipMember& member : members) {
    const std::string shown = file.path() + ": " + member.name;
    arrays.push_back(member.is_deflated ? npy_in_memory(zip.read(member), shown)
                                        : npy_at(file, zip.data_at(member), member.bytes, shown));
    arrays.back().name = member.name.ends_with(".npy") ? member.name.substr(0, member.name.size() - 4) : member.name;
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
                      fmt::format("{}: '{}' has elements of {}, which are not supported", file.path(), entry.name,
                                  to_string(entry.type)),
                      "list the tensors to read in dataset.fields, or store them as F32");
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
                        "remove the file from the set, or change the name");
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
    ZipFile zip(file);
    for (const ZipMember& member : npz_members(zip, options.fields, path))
      if (!member.is_deflated) zip.verify(member);
  }
}

std::unique_ptr<Source> open_safetensors(const ArrayFileOptions& options) {
  return open_array_files(options, safetensors_arrays);
}

}  // namespace trainctl
