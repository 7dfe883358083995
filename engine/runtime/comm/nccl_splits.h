// Creates NCCL communicators for the groups of a whole job. Every rank of the parent calls ncclCommSplit; one call
// creates any number of disjoint groups. All ranks know all groups, in the same order.
#pragma once

#include <compare>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

/// Ranks that need their own communicator.
struct NcclGroup {
  std::vector<int> ranks;   ///< in the group's order
  bool is_channel = false;  ///< messages from ranks[0] to ranks[1] only: neither direction waits for the other

  auto operator<=>(const NcclGroup&) const = default;
};

/// The groups that this rank is in, each once, sorted; without the world (0, 1, 2 …), which exists already.
std::vector<NcclGroup> groups_of(const Program& program, int num_ranks);

/// The groups of all ranks, each once, sorted. Collective.
std::vector<NcclGroup> gather_groups(const std::vector<NcclGroup>& mine, Communicator& ranks);

/// Rounds of disjoint groups; greedy, so not always the fewest rounds.
std::vector<std::vector<NcclGroup>> split_rounds(const std::vector<NcclGroup>& groups);

}  // namespace trainctl
