// Decides which files of a run's folder a host may write: those that its own ranks write, and no others.
#include "launcher/hosts/file_owners.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <string_view>

namespace trainctl::hosts {
namespace {

namespace fs = std::filesystem;

/// Returns whether this is the name of a rank's folder: "rank.3", "server.0".
bool is_rank_folder(std::string_view name) {
  const size_t dot = name.find('.');
  const std::string_view kind = name.substr(0, dot);
  return dot != std::string_view::npos && dot + 1 < name.size() && (kind == "rank" || kind == "server") &&
         name.find_first_not_of("0123456789", dot + 1) == std::string_view::npos;
}

/// Returns whether the launcher keeps this file in a run's folder (run_directory.h), where no rank may replace it.
bool is_of_launcher(std::string_view name) {
  static constexpr std::array<std::string_view, 11> kNames = {
      "job.yaml",   "plan.json",    "machine.json", "outcome.json", "outcome.json.reserved",
      "error.json", "cluster.json", "launcher.log", "trace.json",   "profile.json",
      "checkpoints"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool is_plain(const fs::path& path) {
  return !path.empty() && path.is_relative() &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".." || part == "."; });
}

}  // namespace

bool FileOwners::may_write(int host, const std::vector<int>& ranks, const std::string& name) {
  const fs::path path = name;
  if (!is_plain(path)) return false;
  const std::string first = *path.begin();
  const bool is_inside = std::next(path.begin()) != path.end();
  const auto is_folder_of = [&](int rank) { return names_.folder(rank) == first; };
  if (is_rank_folder(first)) return is_inside && std::any_of(ranks.begin(), ranks.end(), is_folder_of);
  if (first == "tensors" && is_inside) return true;
  const bool is_of_rank_0 = !is_inside && (first == "metrics.jsonl" || first == "loading" ||
                                           first == "evaluation.json" || first.starts_with("events.out.tfevents."));
  if (is_of_rank_0) return std::find(ranks.begin(), ranks.end(), 0) != ranks.end();
  if (of_network_ || is_of_launcher(first)) return false;
  return first_writers_.try_emplace(name, host).first->second == host;
}

}  // namespace trainctl::hosts
