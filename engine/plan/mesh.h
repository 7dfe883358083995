// The ranks of one pipeline stage as axes of prime size: 8 ranks = 2x2x2, 6 = 3x2, 1 = no axes.
// Axis 0 is the slowest: rank-in-stage = ((c0 * s1 + c1) * s2 + c2) …
// All stages have the same mesh. Global rank = stage * mesh.size() + rank-in-stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainctl {

using Axis = int;                ///< index of a mesh axis
using Axes = std::vector<Axis>;  ///< ordered, major first
/// The axes of `axes` that are not in `removed`, in their order.
Axes without(const Axes& axes, const Axes& removed);

class Mesh {
 public:
  explicit Mesh(int ranks = 1);  ///< makes one axis per prime factor of `ranks`, largest first

  int size() const { return size_; }
  int num_axes() const { return static_cast<int>(sizes_.size()); }
  int axis_size(Axis axis) const { return sizes_[axis]; }
  const std::vector<int>& axis_sizes() const { return sizes_; }
  int stride(Axis axis) const { return strides_[axis]; }  ///< distance from a rank to the next along the axis

  int coordinate(int rank_in_stage, Axis axis) const;
  int ways(const Axes& axes) const;                      ///< product of the sizes
  int index(int rank_in_stage, const Axes& axes) const;  ///< index of the rank's block, if a dim is cut by `axes`
  /// The rank (in stage) with the same coordinates except 0 along `axes`: the first of group(rank, axes).
  int without(int rank_in_stage, const Axes& axes) const;
  /// The ranks (in stage) that differ from this one only in `axes`, ordered by index(·, axes).
  std::vector<int> group(int rank_in_stage, const Axes& axes) const;

 private:
  int size_ = 1;
  std::vector<int> sizes_;
  std::vector<int> strides_;
};

std::string to_string(const Mesh& mesh);  ///< "2x2x2"; one rank: "1"

}  // namespace trainctl
