// The files of a set, and errors for files that no source reads.
#include "engine/train/data/sources/file_list.h"

#include <fmt/format.h>

#include <filesystem>
#include <unordered_set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/data/file_patterns.h"
#include "engine/train/data/tables/table_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

struct ForeignFormat {
  const char* suffix;
  const char* name;
  const char* instead;
};
constexpr const char* kTable = "dataset.type: table reads it";
constexpr ForeignFormat kForeign[] = {
    {".parquet", "Parquet", kTable},
    {".arrow", "Arrow", kTable},
    {".feather", "Arrow", kTable},
    {".orc", "ORC", kTable},
    {".h5", "HDF5", kTable},
    {".hdf5", "HDF5", kTable},
    {".pkl", "a pickle", "write its arrays as npy or safetensors"},
    {".tfrecord", "TFRecord", kTable},
    {".tfrecords", "TFRecord", kTable},
    {".mdb", "LMDB", kTable},
    {".tar.gz", "a compressed tar", "gunzip it, because samples are read in random order"},
    {".tgz", "a compressed tar", "gunzip it, because samples are read in random order"},
    {".csv.gz", "a compressed table", "gunzip it, because rows are read in random order"},
};

[[noreturn]] void no_file(const std::string& pattern, const std::string& field) {
  if (is_url(pattern))
    throw SpecError({}, field, fmt::format("no object matches '{}'", shown_url(pattern)),
                    "in a key, * matches no '/', and ** matches any folders");
  std::error_code ignored;
  if (const size_t open = pattern.find('{'), close = pattern.find('}', open); close != std::string::npos)
    throw SpecError(
        {}, field, fmt::format("there is no file '{}': braces are not expanded", pattern),
        "use a glob such as " + pattern.substr(0, open) + "*" + pattern.substr(close + 1) + ", or a list of files");
  if (is_glob(pattern))
    throw SpecError({}, field, fmt::format("no file matches '{}'", pattern),
                    "paths are relative to the job file; ** matches any folders");
  if (fs::is_directory(pattern, ignored))
    throw SpecError({}, field, fmt::format("'{}' is a folder", pattern), "to select its files: " + pattern + "/*");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(pattern).parent_path(), ignored))
    names.push_back(entry.path().filename().string());
  const std::string near = did_you_mean(fs::path(pattern).filename().string(), names);
  throw SpecError({}, field, fmt::format("there is no file '{}'", pattern),
                  near.empty() ? "paths are relative to the job file" : near);
}

/// The files of one pattern; with `tables`, also those of a folder of tables.
std::vector<std::string> files_of_pattern(const std::string& pattern, const std::string& field, bool tables) {
  std::vector<std::string> found;
  std::error_code ignored;
  try {
    found = files_matching(pattern);
    if (found.empty() && tables && (is_url(pattern) ? !is_glob(pattern) : fs::is_directory(pattern, ignored)))
      found = table_files_of_folder(pattern);
  } catch (const EnvError& error) {  // a store, or a damaged folder
    throw SpecError({}, field, error.what());
  }
  if (found.empty()) no_file(pattern, field);
  if (!tables)
    for (const std::string& file : found) refuse_foreign_format(file, field);
  return found;
}

std::vector<std::string> list_all(const std::vector<std::string>& patterns, const std::string& field, bool tables) {
  if (patterns.empty())
    throw SpecError({}, field, "must name at least one file",
                    "give a file, a glob, or a list of "
                    "them");
  std::vector<std::string> files;
  std::unordered_set<std::string> known;
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string place = patterns.size() > 1 ? fmt::format("{}[{}]", field, i) : field;
    for (const std::string& file : files_of_pattern(patterns[i], place, tables)) {
      if (known.insert(file).second) files.push_back(file);
    }
  }
  return files;
}

}  // namespace

std::vector<std::string> list_files(const std::vector<std::string>& patterns, const std::string& field) {
  return list_all(patterns, field, false);
}

std::vector<std::string> list_table_files(const std::vector<std::string>& patterns, const std::string& field) {
  std::vector<std::string> files = list_all(patterns, field, true);
  for (const std::string& file : files)
    if (!is_table_file(file)) refuse_foreign_format(file, field);
  return files;
}

void refuse_foreign_format(const std::string& path, const std::string& field) {
  for (const ForeignFormat& format : kForeign)
    if (path.ends_with(format.suffix))
      throw SpecError(
          {}, field,
          fmt::format("'{}' is {}, which a data set of this type does not read", shown_url(path), format.name),
          format.instead);
}

}  // namespace trainctl
