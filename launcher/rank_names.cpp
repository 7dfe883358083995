// Names of the processes of a job.
#include "launcher/rank_names.h"

#include "launcher/live_status.h"

namespace trainctl {
namespace {

std::string with_noun(const std::string& noun, const std::vector<int>& numbers) {
  return noun + (numbers.size() == 1 ? " " : "s ") + format_ranks(numbers);
}

}  // namespace

std::string RankNames::name(int rank) const {
  return is_server(rank) ? "server " + std::to_string(rank - workers) : "rank " + std::to_string(rank);
}

std::string RankNames::folder(int rank) const {
  return is_server(rank) ? "server." + std::to_string(rank - workers) : "rank." + std::to_string(rank);
}

std::string RankNames::numbers(const std::vector<int>& ascending) const {
  std::vector<int> ranks, servers;
  for (const int rank : ascending) is_server(rank) ? servers.push_back(rank - workers) : ranks.push_back(rank);
  if (servers.empty()) return format_ranks(ranks);
  return (ranks.empty() ? "" : format_ranks(ranks) + ", ") + with_noun("server", servers);
}

std::string RankNames::names(const std::vector<int>& ascending) const {
  std::vector<int> ranks;
  for (const int rank : ascending)
    if (!is_server(rank)) ranks.push_back(rank);
  if (ranks.empty()) return numbers(ascending);
  return (ranks.size() == 1 ? "rank " : "ranks ") + numbers(ascending);
}

std::string processes_text(int ranks, int servers) {
  const auto count = [](int number, const std::string& noun) {
    return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
  };
  return servers == 0 ? count(ranks, "rank") : count(ranks, "worker") + " and " + count(servers, "server");
}

}  // namespace trainctl
