// Counts the ranks of a host, and finds the axes of a mesh that stay within hosts.
#include "engine/plan/axes/host_axes.h"

#include <algorithm>
#include <vector>

#include "engine/spec/hosts.h"

namespace trainctl {
namespace {

int even_share(int ranks, int hosts) { return hosts > 0 && ranks % hosts == 0 ? ranks / hosts : 0; }

}  // namespace

int ranks_of_host(const JobSpec& spec, const Machine& machine) {
  const LaunchSpec& launch = spec.launch;
  if (launch.target != Target::hosts && launch.target != Target::compose)
    return even_share(launch.ranks, managed_hosts(launch));
  if (launch.hosts.empty()) return std::max(machine.devices, 1);
  const std::vector<HostRanks> hosts = place_ranks(parse_hosts(launch.hosts), launch.ranks).hosts;
  const auto as_many = [&](const HostRanks& host) { return host.ranks == hosts[0].ranks; };
  return !hosts.empty() && std::all_of(hosts.begin(), hosts.end(), as_many) ? hosts[0].ranks : 0;
}

Axes axes_within_hosts(const Mesh& mesh, int ranks_of_host) {
  Axes within;
  for (Axis axis = mesh.num_axes() - 1; axis >= 0; --axis) {
    // Ranks that differ in no axis before this one have consecutive numbers.
    const int row = mesh.stride(axis) * mesh.axis_size(axis);
    if (ranks_of_host % row != 0) break;
    within.insert(within.begin(), axis);
  }
  return within;
}

}  // namespace trainctl
