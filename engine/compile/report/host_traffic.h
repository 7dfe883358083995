// The bytes that a step moves within hosts and between them, from the programs that run.
//
// A collective over ranks of several hosts is a sum or gathering within each host, an exchange between one rank per
// host, and a broadcast within each host (engine/runtime/comm/hosts_communicator.h). The traffic is exchanged_bytes of
// each of these calls, plus the size of each message. Of an exchange of counted rows it is what is expected.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/rank_classes.h"
#include "engine/graph/collective.h"
#include "engine/graph/dtype.h"

namespace trainctl {

struct HostTraffic {
  int64_t within = 0, between = 0;
  HostTraffic& operator+=(const HostTraffic& other) {
    within += other.within;
    between += other.between;
    return *this;
  }
};

/// Traffic of one call in a group with members[i] members on its host i.
HostTraffic traffic_of(Collective kind, const std::vector<int>& members, int64_t count, DType dtype);
/// Traffic of an all_to_all that moves `share` of each block of `count` elements (comm/host_rows.h).
HostTraffic traffic_of_rows(const std::vector<int>& members, int64_t count, DType dtype, double share);

/// Traffic of a step over all ranks, by purpose and kind ("send" for messages). `host_of`: index of the host, per rank.
std::map<std::pair<std::string, std::string>, HostTraffic> traffic_of_step(const RankClasses& classes,
                                                                           const std::vector<int>& host_of);

}  // namespace trainctl
