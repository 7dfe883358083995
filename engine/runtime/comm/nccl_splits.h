// How the groups of a whole job become NCCL communicators. ncclCommSplit is called by every rank of the parent, and
// makes any number of groups at once that have no rank in common. All ranks know all groups, in one order.
#pragma once

#include <compare>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

/// Ranks that need a communicator of their own.
struct NcclGroup {
  std::vector<int> ranks;   ///< in the group's order
  bool is_channel = false;  ///< messages from ranks[0] to ranks[1]: one direction, so that neither waits for the other

  auto operator<=>(const NcclGroup&) const = default;
};

/// The groups that this rank is in, each once, sorted. Of the world (0, 1, 2 …) there is one already.
std::vector<NcclGroup> groups_of(const Program& program, int num_ranks);

/// Those of all ranks, each once, sorted. Collective.
std::vector<NcclGroup> gather_groups(const std::vector<NcclGroup>& mine, Communicator& ranks);

/// Disjoint groups a round, in as few rounds as come easily.
std::vector<std::vector<NcclGroup>> split_rounds(const std::vector<NcclGroup>& groups);

}  // namespace trainctl
