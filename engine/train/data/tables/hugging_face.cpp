// Folders written by the Hugging Face package `datasets`.
#include "engine/train/data/tables/hugging_face.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/data/file_patterns.h"
#include "engine/train/data/tables/plain_name.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

nlohmann::json read_folder_json(const fs::path& path) {
  auto json = nlohmann::json::parse(read_whole_file(path.string()), nullptr, false);
  if (!json.is_object()) throw EnvError(path.string() + ": expected a JSON object");
  return json;
}

[[noreturn]] void fail_splits(const std::string& folder, const std::vector<std::string>& splits,
                              const std::string& how) {
  throw EnvError(folder + " has the splits " + printable(join(splits)) + "; name one of them, for example " +
                 printable(how));
}

}  // namespace

bool is_hugging_face_folder(const std::string& folder) {
  return path_exists((fs::path(folder) / "state.json").string()) ||
         path_exists((fs::path(folder) / "dataset_dict.json").string());
}

std::vector<std::string> hugging_face_files(const std::string& folder) {
  const fs::path at(folder), state_path = at / "state.json";
  if (!path_exists(state_path.string())) {
    const auto dict = read_folder_json(at / "dataset_dict.json");
    std::vector<std::string> splits;
    if (const auto found = dict.find("splits"); found != dict.end() && found->is_array())
      for (const auto& split : *found)
        if (split.is_string()) splits.push_back(split.get<std::string>());
    fail_splits(folder, splits, folder + "/" + (splits.empty() ? "train" : splits.front()));
  }
  const auto state = read_folder_json(state_path);
  if (const auto indices = state.find("_indices_data_files");
      indices != state.end() && indices->is_array() && !indices->empty())
    throw EnvError(state_path.string() +
                   ": the data set selects rows by indices; save it again after flatten_indices()");
  const auto files = state.find("_data_files");
  if (files == state.end() || !files->is_array() || files->empty())
    throw EnvError(state_path.string() + ": expected the list _data_files");
  std::vector<std::string> paths;
  for (const auto& file : *files) {
    const auto name = file.is_object() ? file.find("filename") : file.end();
    if (!file.is_object() || name == file.end() || !name->is_string())
      throw EnvError(state_path.string() + ": an entry of _data_files has no filename");
    const std::string path = require_plain_name(name->get<std::string>(), state_path.string());
    if (!path.ends_with(".arrow"))
      throw EnvError(state_path.string() + ": _data_files names '" + printable(path) +
                     "', which is not an .arrow file");
    paths.push_back((at / path).string());
  }
  return paths;
}

std::vector<std::string> parquet_files_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  if (is_url(folder) && !folder.starts_with("http"))  // a web server has no list of files
    files = files_matching((fs::path(folder) / "*.parquet").string());
  else
    for (const auto& entry : fs::directory_iterator(folder, error)) files.push_back(entry.path().string());
  std::erase_if(files, [](const std::string& file) {
    const std::string name = fs::path(file).filename().string();
    return !name.ends_with(".parquet") || name.starts_with(".");
  });
  std::set<std::string> splits;
  for (const std::string& file : files) {
    const std::string name = fs::path(file).filename().string();
    splits.insert(name.substr(0, name.find('-')));
  }
  std::sort(files.begin(), files.end());
  if (const fs::path data = fs::path(folder) / "data"; files.empty() && fs::is_directory(data, error))
    return parquet_files_of(data.string());  // where repositories have them
  const bool are_splits = splits.contains("test") || splits.contains("validation");
  if (splits.size() > 1 && are_splits)
    fail_splits(folder, {splits.begin(), splits.end()}, folder + "/" + *splits.rbegin() + "-*.parquet");
  return files;
}

}  // namespace trainctl
