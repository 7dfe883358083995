// Model folders in Hugging Face format: config.json, model.safetensors (or an index of several), the tokenizer's files.
#include "engine/model_folder/model_folder.h"

#include <cctype>
#include <filesystem>

#include "engine/model_folder/families.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// The folder's name as the name of a job, which becomes part of file names.
std::string job_name(const std::string& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  std::string name = path.has_filename() ? path.filename() : path.parent_path().filename();
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.') c = '_';
  while (name.starts_with('.') || name.starts_with('-')) name.erase(0, 1);
  return name.empty() || std::isalpha(static_cast<unsigned char>(name[0])) == 0 ? "model" + name : name;
}

}  // namespace

FolderJob job_of_folder(const std::string& folder, const std::string& from, const Finetune& tuning) {
  ModelConfig config(folder);
  const ModelFamily& family = find_family(config);
  config.add_defaults(ModelConfig::Json::parse(family.defaults));
  const ModelJob job = family.job(config, tuning);
  require_task(job, tuning, config.type());
  return {job_text(job, tuning, from, job_name(folder)), config.notes()};
}

std::string folder_of_weights(const std::string& path) {
  if (fs::is_directory(path)) return path;
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

std::string_view map_of_folder(const std::string& folder) { return find_family(ModelConfig(folder)).map; }

}  // namespace trainctl
