// Finds the broken link between two hosts from the hosts' own checks of their links (link_check.h).
#include "launcher/hosts/broken_link.h"

#include <algorithm>
#include <utility>

namespace trainctl::hosts {

std::optional<LostLink> broken_link(const std::vector<HostLinks>& hosts) {
  std::map<std::pair<size_t, size_t>, std::string> broken;  // indices of hosts in order, and the fault
  std::vector<int> count(hosts.size());
  for (size_t from = 0; from < hosts.size(); ++from) {
    for (size_t to = 0; to < hosts.size(); ++to) {
      const auto fault = hosts[from].faults.find(hosts[to].host);
      if (fault == hosts[from].faults.end() || !hosts[from].is_heard || !hosts[to].is_heard) continue;
      const std::pair<size_t, size_t> ends = std::minmax(from, to);
      if (!broken.try_emplace(ends, hosts[from].host + " " + fault->second).second) continue;
      ++count[from];
      ++count[to];
    }
  }
  if (broken.empty()) return std::nullopt;
  const auto most = std::max_element(count.begin(), count.end());
  const auto worst = static_cast<size_t>(most - count.begin());
  const auto link = std::find_if(broken.begin(), broken.end(), [worst](const auto& one) {
    return one.first.first == worst || one.first.second == worst;
  });
  const auto& [ends, fault] = *link;
  const size_t other = ends.first == worst ? ends.second : ends.first;
  const bool is_worse = count[other] < *most;
  return LostLink{hosts[ends.first].host, hosts[ends.second].host, fault, is_worse ? hosts[worst].host : ""};
}

}  // namespace trainctl::hosts
