// Communicator of ranks on several hosts, from two others: one within this host, and one between all ranks.
//
//   reduce within each host  ->  exchange between one rank of each host  ->  spread within each host
//
// The rank that exchanges for its host, the group's leader there, is the first of the group on that host. Groups within
// one host and messages within one host use only the first Communicator.
#pragma once

#include <memory>
#include <vector>

#include "engine/runtime/communicator.h"

namespace trainctl {

/// `host_of`: the number of each rank's host. Both know the ranks by their numbers in the job; `within` serves groups
/// and messages of the ranks of one host, `between` those of any.
///
/// Sums add the ranks of each host in group order, then the hosts in the order in which the group names them: every
/// rank has the same bits, which may differ from those of one host by rounding. bf16 is rounded after each of the two.
std::unique_ptr<Communicator> make_hosts_communicator(std::unique_ptr<Communicator> within,
                                                      std::unique_ptr<Communicator> between, std::vector<int> host_of);

}  // namespace trainctl
