// Removes from metrics.jsonl, between the attempts of a run, the steps that the next attempt repeats.
#include "cli/run/launch/metrics_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/run/worker/metrics_log.h"
#include "engine/base/json_field.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

struct MetricsLine {
  std::string text;  ///< with its end
  int64_t step = 0;  ///< step of the line, or of the previous one if it has none
};

/// The kind and step of a line, which only one line per run has.
using MetricsKey = std::pair<std::string, int64_t>;

/// Skips incomplete lines, whose writer has died.
std::vector<MetricsLine> read_lines(const std::string& path, std::set<MetricsKey>& keys, bool only_new) {
  std::vector<MetricsLine> lines;
  std::ifstream file(path);
  int64_t step = 0;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || file.eof()) continue;
    const bool has_step = json.contains("run_step") && json["run_step"].is_number_integer();
    if (has_step) step = json["run_step"].get<int64_t>();
    const bool is_new = has_step && keys.emplace(field_or(json, "kind", "step"), step).second;
    if (is_new || !only_new) lines.push_back({line + "\n", step});
  }
  return lines;
}

std::vector<std::string> copies_in(const RunDirectory& directory) {
  std::vector<std::string> files;
  for (const int rank : directory.ranks()) {
    std::error_code ignored;
    if (const std::string path = directory.rank_file(rank, kMetricsFile); fs::exists(path, ignored))
      files.push_back(path);
  }
  return files;
}

/// Replaces the file atomically, or does not change it.
void replace_lines(const std::string& path, const std::vector<MetricsLine>& lines) {
  const std::string part = path + ".part";
  std::ofstream out(part, std::ios::trunc);
  for (const MetricsLine& line : lines) out << line.text;
  out.close();
  std::error_code error;
  if (out) fs::rename(part, path, error);
  if (!out || error) fs::remove(part, error);
}

}  // namespace

int64_t keep_metrics(const RunDirectory& directory, int64_t last_step) {
  const std::string path = directory.file(kMetricsFile);
  std::set<MetricsKey> keys;
  std::vector<MetricsLine> lines = read_lines(path, keys, false);
  const size_t own = lines.size();
  for (const std::string& copy : copies_in(directory))
    for (MetricsLine& line : read_lines(copy, keys, true)) lines.push_back(std::move(line));
  const bool adds = lines.size() > own;
  if (adds) std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  std::error_code ignored;
  const auto is_kept = [&](const MetricsLine& line) { return line.step <= last_step; };
  const auto cut = std::find_if_not(lines.begin(), lines.end(), is_kept);
  if (!adds && std::none_of(cut, lines.end(), is_kept)) {  // truncating a file needs no disk space
    uintmax_t bytes = 0;
    for (auto line = lines.begin(); line != cut; ++line) bytes += line->text.size();
    std::string before(bytes, '\0');
    std::ifstream(path, std::ios::binary).read(before.data(), static_cast<std::streamsize>(bytes));
    std::string kept;
    for (auto line = lines.begin(); line != cut; ++line) kept += line->text;
    if (before == kept) {  // an invalid line among them would shift the rest
      if (fs::exists(path, ignored)) fs::resize_file(path, bytes, ignored);
      return static_cast<int64_t>(bytes);
    }
  }
  std::erase_if(lines, [&](const MetricsLine& line) { return !is_kept(line); });
  replace_lines(path, lines);
  const auto bytes = fs::file_size(path, ignored);
  return ignored ? 0 : static_cast<int64_t>(bytes);
}

void gather_metrics(const RunDirectory& directory) {
  const std::vector<std::string> copies = copies_in(directory);
  if (copies.empty()) return;
  keep_metrics(directory, std::numeric_limits<int64_t>::max());
  std::error_code ignored;
  for (const std::string& copy : copies) fs::remove(copy, ignored);
}

}  // namespace trainctl
