// Determines which host each rank runs on.
#include "launcher/cluster.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "engine/spec/hosts.h"

namespace trainctl {

Cluster one_host(int workers, int servers) {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) name = {'l', 'o', 'c', 'a', 'l'};
  Cluster cluster;
  cluster.names = {workers};
  const int ranks = workers + servers;
  for (int rank = 0; rank < ranks; ++rank) cluster.places.push_back({rank, name.data(), rank, ranks});
  return cluster;
}

namespace {

std::vector<HostRanks> hosts_of(const JobSpec& spec) {
  if (spec.launch.hostfile.empty()) return parse_hosts(spec.launch.hosts);
  std::ifstream file(spec.launch.hostfile);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw EnvError("cannot read the hostfile " + spec.launch.hostfile);
  std::string fault;
  const auto hosts = parse_hostfile(text.str(), fault);
  if (hosts && !hosts->empty()) return *hosts;
  throw SpecError(spec.position("launch.hostfile"), "launch.hostfile",
                  spec.launch.hostfile + ": " + (hosts ? "the file names no hosts" : fault));
}

}  // namespace

Cluster several_hosts(const JobSpec& spec) {
  const Placement placement = place_ranks(hosts_of(spec), spec.launch.ranks);
  if (!placement.fault.empty()) {
    const std::string field = spec.launch.hostfile.empty() ? "launch.hosts" : "launch.hostfile";
    throw SpecError(spec.position(field), field, placement.fault, placement.hint);
  }
  Cluster cluster;
  cluster.names = {spec.launch.ranks};
  int host_number = 0;
  for (const HostRanks& host : placement.hosts) {
    for (int local = 0; local < host.ranks; ++local)
      cluster.places.push_back({cluster.num_ranks(), host.host, local, host.ranks, host_number});
    ++host_number;
  }
  return cluster;
}

Cluster cluster_of(const JobSpec& spec) {
  return spec.launch.has_hosts() ? several_hosts(spec) : one_host(spec.launch.ranks, spec.servers());
}

}  // namespace trainctl
