// A layout distributes a tensor over a mesh: for each dim the axes that cut it, major first, and the axes that it is
// a partial sum over. The tensor is replicated over all other axes.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/plan/mesh.h"

namespace trainctl {

struct Layout {
  std::vector<Axes> dims;  ///< one per dim of the tensor
  Axes partial;            ///< sorted; each rank along them holds one term of the sum

  static Layout replicated(int ndim) { return {std::vector<Axes>(ndim), {}}; }
  bool is_partial() const { return !partial.empty(); }
  /// Axes that neither cut a dim nor are partial.
  Axes replica_axes(const Mesh& mesh) const;
  bool uses(Axis axis) const;

  /// The shape of a local shard, and its position in the whole tensor. The planner ensures that every cut divides its
  /// dim.
  Shape local_shape(const Mesh& mesh, const Shape& global) const;
  Shape local_offset(const Mesh& mesh, const Shape& global, int rank_in_stage) const;

  friend bool operator==(const Layout&, const Layout&) = default;
  friend auto operator<=>(const Layout&, const Layout&) = default;
};

/// "cut 4 ways", or "not cut".
std::string cut_text(int64_t ways);

/// Cuts per dim: "[4, 1]"; with the axes if `mesh` has more than one: "[4@0.1, 1]"; a partial sum ends in "+sum(2)"
/// or "+sum(2@2)".
std::string to_string(const Layout& layout, const Mesh& mesh);

}  // namespace trainctl
