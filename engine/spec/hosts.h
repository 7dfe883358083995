// The hosts of a job, as launch.hosts or a hostfile names them, and how many ranks each gets.
//
//   host := [user "@"] name [":" ranks]        name: of DNS, of ssh's config, or an address ([::1]:2, fe80::1)
//
// Ranks are numbered host by host, in the order of the list.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/spec/launch_spec.h"

namespace trainctl {

struct HostRanks {
  std::string host;  ///< host name for ssh: "me@a"
  int ranks = 0;     ///< 0: its share of the ranks that the others leave
  friend bool operator==(const HostRanks&, const HostRanks&) = default;
};

/// Parses one host. Returns nullopt if the text does not follow the grammar. No host begins with '-', so ssh takes none
/// for an option.
std::optional<HostRanks> parse_host(std::string_view text);
/// Parses the texts that follow the grammar; leaves out the others.
std::vector<HostRanks> parse_hosts(const std::vector<std::string>& texts);

struct Placement {
  std::vector<HostRanks> hosts;  ///< each with the ranks that it gets, at least one
  std::string fault, hint;       ///< why the ranks do not fit; empty: they do
};

/// If every host has a number: they are filled in order, as by mpirun. Otherwise hosts with a number get exactly that,
/// and the others share the rest evenly, the first ones one more.
Placement place_ranks(const std::vector<HostRanks>& hosts, int ranks);

/// The number of nodes or pods that launch.target requests; launch.target is not hosts.
int managed_hosts(const LaunchSpec& launch);

/// True if a queue runs a batch script of the job.
bool is_batch(Target target);

/// Reads a hostfile of mpirun or DeepSpeed. Its lines are `host`, `host:4`, `host slots=4`; `#` begins a comment. A
/// host that is named again has the slots of both. nullopt and `fault` with its line's number for any other line.
std::optional<std::vector<HostRanks>> parse_hostfile(std::string_view text, std::string& fault);

}  // namespace trainctl
