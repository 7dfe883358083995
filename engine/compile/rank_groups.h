// Ranks that communicate, as one value for all groups of a kind: "those that differ from me along mesh axes 9, 10 and
// 11" is the same group on all 4,096 ranks, {0,1,…,7} or {8,9,…,15}. So groups of many ranks can be compared and
// counted by an id, and nobody writes them out.
#pragma once

#include <compare>
#include <vector>

#include "engine/plan/mesh.h"

namespace trainctl {

struct GroupKind {
  std::vector<int> stages;  ///< in order; in each of them the ranks along `axes`
  Axes axes;
  std::vector<int> ranks;  ///< of a group that is not of the mesh: its members. Else empty

  bool is_of_mesh() const { return ranks.empty(); }
  int size(const Mesh& mesh) const;
  /// Global ranks of the one that `rank` is in, in order.
  std::vector<int> members(const Mesh& mesh, int rank) const;
  /// The first of them, which tells the groups of a kind apart.
  int first(const Mesh& mesh, int rank) const;

  friend auto operator<=>(const GroupKind&, const GroupKind&) = default;
};

/// The kind of group that this list of global ranks is for `rank`. Equal lists give equal kinds, and lists of one kind
/// and one member are equal.
GroupKind group_of_ranks(const Mesh& mesh, const std::vector<int>& ranks, int rank);

}  // namespace trainctl
