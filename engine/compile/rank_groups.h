// A group of communicating ranks, described by one value for all groups of a kind: "the ranks that differ from me
// along mesh axes 9, 10 and 11" is the same value on all 4,096 ranks, for {0,1,…,7} as for {8,9,…,15}. So large
// groups are compared and counted by id, without listing their members.
#pragma once

#include <compare>
#include <vector>

#include "engine/plan/mesh.h"

namespace trainctl {

struct GroupKind {
  std::vector<int> stages;  ///< in order; in each stage the ranks along `axes`
  Axes axes;
  std::vector<int> ranks;  ///< members of a group that does not follow mesh axes; else empty

  bool is_of_mesh() const { return ranks.empty(); }
  int size(const Mesh& mesh) const;
  /// Global ranks of the group that `rank` belongs to, in order.
  std::vector<int> members(const Mesh& mesh, int rank) const;
  /// The first of them; it identifies a group among those of its kind.
  int first(const Mesh& mesh, int rank) const;

  friend auto operator<=>(const GroupKind&, const GroupKind&) = default;
};

/// The kind of this list of global ranks, seen from `rank`. Equal lists give equal kinds, and two lists of the same
/// kind that share a member are equal.
GroupKind group_of_ranks(const Mesh& mesh, const std::vector<int>& ranks, int rank);

}  // namespace trainctl
