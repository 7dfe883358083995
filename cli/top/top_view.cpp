// The text of `trainctl top`: this host, its runs, and the resource usage of their ranks.
#include "cli/top/top_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/render/progress.h"
#include "cli/text/table.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

std::string head(const HostUsage& host, size_t runs) {
  return fmt::format("{} run{}  load {:.1f} of {} cores  memory {} of {}", runs, runs == 1 ? "" : "s", host.load,
                     host.cpus, format_bytes(host.memory_bytes - host.available_bytes),
                     format_bytes(host.memory_bytes));
}

std::vector<std::string> row_of(const RankUsage& rank, bool has_gpus) {
  std::vector<std::string> row = {std::to_string(rank.rank),
                                  rank.cores ? fmt::format("{:.0f}%", 100 * *rank.cores) : "",
                                  rank.resident_bytes > 0 ? format_bytes(rank.resident_bytes) : ""};
  if (has_gpus) {
    const std::optional<CudaLoad>& load = rank.gpu_load;
    row.push_back(rank.gpu ? std::to_string(*rank.gpu) : "");
    row.push_back(load ? fmt::format("{:.0f}%", 100 * load->busy) : "");
    row.push_back(load ? format_bytes(load->used_bytes) : "");
    row.push_back(load ? fmt::format("{:.0f} W", load->watts) : "");
  }
  row.push_back(rank.doing);
  return row;
}

std::string ranks_table(const RunUsage& run, size_t most) {
  const bool has_gpus =
      std::any_of(run.ranks.begin(), run.ranks.end(), [](const RankUsage& r) { return r.gpu.has_value(); });
  std::vector<std::string> headers = {">rank", ">cpu", ">memory"};
  if (has_gpus) headers.insert(headers.end(), {">gpu", ">busy", ">gpu memory", ">power"});
  headers.emplace_back("state");
  Table table(headers);
  const size_t shown = most == 0 || run.ranks.size() <= most ? run.ranks.size() : most - 1;
  for (size_t r = 0; r < shown; ++r) table.add(row_of(run.ranks[r], has_gpus));
  return table.str() + (shown < run.ranks.size() ? fmt::format("  … {} more ranks\n", run.ranks.size() - shown) : "");
}

/// Number of lines for the ranks of each run; 0: unlimited.
size_t share_of_height(size_t height, size_t runs) {
  constexpr size_t kHead = 1, kOfRun = 3;  // a blank line, the run, the table's head
  if (height == 0 || runs == 0) return 0;
  const size_t left = height > kHead + runs * kOfRun ? height - kHead - runs * kOfRun : 0;
  return std::max<size_t>(left / runs, 2);
}

}  // namespace

std::string top_text(const HostUsage& host, const std::vector<RunUsage>& runs, size_t width, size_t height) {
  std::string text = head(host, runs.size()) + "\n";
  if (runs.empty()) text += "\nno run is active\n";
  for (const RunUsage& run : runs) {
    LiveStatus brief = run.status;
    brief.ranks.clear();  // each has a line below
    const size_t left = width == 0 ? 200 : width > run.name.size() + 2 ? width - run.name.size() - 2 : 0;
    text += "\n" + run.name + "  " + progress_text(brief, left) + "\n" +
            ranks_table(run, share_of_height(height, runs.size()));
  }
  return cut_lines(text, width, height);
}

}  // namespace trainctl
