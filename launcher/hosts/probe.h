// Facts that `trainctl hosts` finds out about the hosts of a job before anything runs on them. On each host a probe
// runs, started by a Transport:
//
//   probe ──▶ stdout    "trainctl-probe " JSON: facts about the host, and the probe's address and port
//   stdin ──▶ probe     JSON: [[name, address, port], …] of the other hosts
//   probe ──▶ stdout    one line "trainctl-link " JSON for each of them; then it serves the others until stdin ends
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/cluster.h"
#include "launcher/hosts/transport.h"

namespace trainctl::hosts {

inline constexpr const char* kProbeLine = "trainctl-probe ";
inline constexpr const char* kLinkLine = "trainctl-link ";

/// Runs the probe on a host. Returns the exit code.
int probe_this_host(const std::string& interface);

struct HostFacts {
  std::string name;
  std::string fault;  ///< why the host cannot be used; empty: it can
  std::string machine, system, address;
  int cores = 0, gpus = 0;
  int64_t memory_bytes = 0;  ///< available
  int64_t disk_bytes = 0;    ///< free where the program is copied to
  double clock_seconds = 0;  ///< ahead of this host's clock, within half of round_trip_seconds
  double round_trip_seconds = 0;
};

struct LinkFacts {
  std::string from, to;
  std::string fault;           ///< why there is no connection; empty: there is one
  double latency_seconds = 0;  ///< half of the median round trip of 64 bytes
  double bytes_per_second = 0;
};

struct HostsReport {
  std::vector<HostFacts> hosts;
  std::vector<LinkFacts> links;  ///< one per ordered pair of hosts
  bool fine() const;
};

/// Probes all hosts and the links between them. Copies the program to hosts that lack it. `notice` receives a
/// line for each host that responds late.
HostsReport probe_hosts(const Cluster& cluster, const Transport& transport, const std::string& interface,
                        const std::function<void(const std::string& line)>& notice = {});

}  // namespace trainctl::hosts
