// `plugins`: shared libraries with layer types of their own (base/plugins.h).
#include "engine/spec/plugins.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "engine/base/plugins.h"
#include "engine/spec/read_dataset.h"

namespace trainctl {
namespace {

constexpr std::string_view kDigestMark = "#sha256=";
constexpr size_t kSha256Digits = 64;

bool is_digest(const std::string& text) {
  return text.size() == kSha256Digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// Loads one plugin and completes its entry.
void load(YamlNode& node, const JobText& from, const std::string& path, Problems& problems) {
  PluginFile file = plugin_file(node.text);
  if (node.text.find(kDigestMark) != std::string::npos && !is_digest(file.digest)) {
    problems.add(node.pos, path,
                 "the SHA-256 of a plugin has 64 lower-case hexadecimal digits, not '" + file.digest + "'",
                 "sha256sum " + file.path + " prints it");
    return;
  }
  file.path = absolute_path(from.folder, file.path);
  if (from.any_plugins) file.digest.clear();
  try {
    file.digest = load_plugin(file.path, file.digest);
    node.text = to_string(file);
  } catch (const PluginError& error) {
    problems.add(node.pos, path, error.what(), error.hint.empty() ? "paths are relative to the job file" : error.hint);
  }
}

}  // namespace

PluginFile plugin_file(const std::string& entry) {
  const size_t mark = entry.rfind(kDigestMark);
  if (mark == std::string::npos) return {entry, ""};
  return {entry.substr(0, mark), entry.substr(mark + kDigestMark.size())};
}

std::string to_string(const PluginFile& file) {
  return file.digest.empty() ? file.path : file.path + std::string(kDigestMark) + file.digest;
}

std::string absolute_path(const std::string& folder, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path absolute = fs::absolute(fs::path(folder) / (path.empty() ? "." : path), error);
  if (error) return path;
  std::string text = absolute.lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

bool load_plugins(YamlNode& root, const JobText& from, Problems& problems) {
  const auto entry = std::find_if(root.entries.begin(), root.entries.end(),
                                  [](const YamlNode::Entry& each) { return each.key == "plugins"; });
  if (entry == root.entries.end() || entry->value.is_null()) return true;
  std::vector<std::string> paths;
  read_paths(entry->value, entry->key, paths, problems);  // reports entries that are not paths
  if (problems.touch(entry->key)) return false;
  const bool is_list = entry->value.is_list();
  for (size_t i = 0; i < paths.size(); ++i)
    load(is_list ? entry->value.items[i] : entry->value, from,
         is_list ? entry->key + "[" + std::to_string(i) + "]" : entry->key, problems);
  return !problems.touch(entry->key);
}

}  // namespace trainctl
