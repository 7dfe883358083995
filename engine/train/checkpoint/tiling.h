// Checks whether boxes tile a shape.
//
// The indicator function of a box is a sum of step functions, one at each of its corners, with a sign: + where an even
// number of its coordinates are ends. Boxes tile the whole exactly if the signed corners of all boxes add up to those
// of the whole, corner by corner: as functions the sums are equal only then. In one dim:
//
//   [0, 4) + [4, 6):   +1 at 0,  -1 +1 at 4,  -1 at 6   =   +1 at 0, -1 at 6   = [0, 6)
//
// The first corner (in row-major order) with a remainder is an element that is covered 1 + remainder times, since no
// other remainder is before it. Time and memory grow with boxes * 2^(dims that are cut).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/box.h"

namespace trainctl {

Box whole_box(const Shape& shape);
bool is_whole(const Box& box, const Shape& shape);

/// "" if each element of `shape` is in exactly one box and no box is empty or reaches outside; else what is wrong:
/// "element [0, 3] is in 2 pieces". All dims of `shape` are at least 1.
std::string tiling_defect(const Shape& shape, const std::vector<const Box*>& boxes);

}  // namespace trainctl
