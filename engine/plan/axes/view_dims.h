// Maps a cut of the dims of a tensor to a view of it: the same elements in the same order under another shape.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace trainctl {

/// For each dim of `from` the dim of `to` that has the same product of sizes before it; -1 if none has. A rank that
/// holds block i of the first then holds block i of the second. Both shapes are of a rank's part.
///
///   from [2, 3, 4] to [2, 12]:     0  1 -1      blocks of dim 2 are not contiguous in dim 1 of the view
///   from [1, 4, 1, 8] to [1, 4, 8]: 0  1  2  2  dim 2 is outside dim 3: block i of n, then block j of m: i * m + j
///
/// A dim of size 1 has the same product before it as the next dim. Those of `from` lead to those of `to` in order, and
/// where `to` has fewer, to the larger dim that follows.
std::vector<int> dims_through_view(const Shape& from, const Shape& to);
/// The same for tensors. In addition, a dim that begins with the rows of the batch leads only to a dim that does so
/// too.
std::vector<int> dims_through_view(const Tensor& from, const Tensor& to);

}  // namespace trainctl
