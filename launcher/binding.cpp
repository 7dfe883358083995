// Decides which cores each rank of a host may use, and how many threads it gets.
#include "launcher/binding.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "engine/base/text.h"

namespace trainctl {
namespace {

/// CPUs of one unit: the threads of a core, or the cores of a NUMA node.
struct Unit {
  std::vector<int> cpus;
  int cores = 1;  ///< number of cores that it can keep busy
};

std::vector<Cpu> in_order(std::vector<Cpu> cpus) {
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tuple(a.node, a.core, a.id) < std::tuple(b.node, b.core, b.id);
  });
  return cpus;
}

/// Splits the CPUs, in order, into runs of neighbors that are `same`.
template <typename Same>
std::vector<Unit> units(const std::vector<Cpu>& cpus, const Same& same) {
  std::vector<Unit> found;
  for (size_t i = 0; i < cpus.size(); ++i) {
    const bool opens = i == 0 || !same(cpus[i - 1], cpus[i]);
    const bool another_core = opens || cpus[i - 1].core != cpus[i].core;
    if (opens) found.push_back({{}, 0});
    found.back().cpus.push_back(cpus[i].id);
    found.back().cores += another_core ? 1 : 0;
  }
  return found;
}

/// The units [first, last) of rank `rank` of `ranks`: equal runs. With fewer units than ranks, the unit that contains
/// the middle of the rank's share.
std::pair<size_t, size_t> run_of(size_t rank, size_t ranks, size_t units) {
  if (units >= ranks) return {rank * units / ranks, (rank + 1) * units / ranks};
  const size_t unit = (2 * rank + 1) * units / (2 * ranks);
  return {unit, unit + 1};
}

/// Nodes may differ in size, so a rank is bound to the node that contains the middle of its run of cores.
std::pair<size_t, size_t> nodes_of(size_t rank, size_t ranks, const std::vector<Unit>& nodes) {
  if (nodes.size() >= ranks) return run_of(rank, ranks, nodes.size());
  double cores = 0;
  for (const Unit& node : nodes) cores += node.cores;
  double middle = (static_cast<double>(rank) + 0.5) * cores / static_cast<double>(ranks);
  size_t at = 0;
  while (at + 1 < nodes.size() && middle >= nodes[at].cores) middle -= nodes[at++].cores;
  return {at, at + 1};
}

}  // namespace

std::vector<RankBinding> bindings(const Cluster& cluster, const Topology& topology, BindMode mode) {
  const size_t ranks = cluster.places.size();
  const std::vector<Cpu> cpus = in_order(topology.cpus);
  std::vector<Unit> list = units(cpus, [](const Cpu& a, const Cpu& b) { return a.core == b.core && a.node == b.node; });
  if (mode == BindMode::numa) list = units(cpus, [](const Cpu& a, const Cpu& b) { return a.node == b.node; });
  if (mode == BindMode::none || (mode == BindMode::core && list.size() < ranks)) {
    list = units(cpus, [](const Cpu&, const Cpu&) { return false; });
  }

  std::vector<RankBinding> result(ranks);
  std::map<size_t, int> sharers;  // key: the first unit of a run
  std::vector<std::pair<size_t, size_t>> runs;
  for (size_t rank = 0; rank < ranks; ++rank) {
    runs.push_back(mode == BindMode::numa ? nodes_of(rank, ranks, list) : run_of(rank, ranks, list.size()));
    ++sharers[runs.back().first];
  }
  const auto servers = std::count_if(cluster.places.begin(), cluster.places.end(),
                                     [&](const RankPlace& place) { return cluster.names.is_server(place.rank); });
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto alike =
        cluster.names.is_server(cluster.places[rank].rank) ? servers : static_cast<long>(ranks) - servers;
    const auto sharing = static_cast<int>(mode == BindMode::none ? alike : static_cast<long>(ranks));
    const auto [first, last] = runs[rank];
    int cores = 0;
    for (size_t i = first; i < last && i < list.size(); ++i) {
      cores += list[i].cores;
      if (mode == BindMode::none) continue;
      result[rank].cpus.insert(result[rank].cpus.end(), list[i].cpus.begin(), list[i].cpus.end());
    }
    std::sort(result[rank].cpus.begin(), result[rank].cpus.end());
    // A bound rank has separate cores. Unbound ranks of a role share all cores, an equal part each, since a step waits
    // for the slowest.
    if (mode == BindMode::none) cores = static_cast<int>(list.size()) / sharing;
    if (mode != BindMode::none) cores /= sharers[first];
    if (topology.quota_cores > 0) cores = std::min(cores, static_cast<int>(std::ceil(topology.quota_cores)) / sharing);
    result[rank].threads = std::max(1, cores);
  }
  return result;
}

std::string describe(const RankBinding& binding) {
  if (binding.cpus.empty()) return "not bound";
  std::vector<std::string> runs;
  for (size_t i = 0; i < binding.cpus.size();) {
    size_t end = i + 1;
    while (end < binding.cpus.size() && binding.cpus[end] == binding.cpus[end - 1] + 1) ++end;
    std::string run = std::to_string(binding.cpus[i]);
    if (end > i + 1) run += "-" + std::to_string(binding.cpus[end - 1]);
    runs.push_back(run);
    i = end;
  }
  return (binding.cpus.size() == 1 ? "CPU " : "CPUs ") + join(runs, ",");
}

}  // namespace trainctl
