// Prime factors and mixed-radix coordinates of the ranks of one stage.
#include "engine/plan/mesh.h"

#include <algorithm>

#include "engine/base/error.h"

namespace trainctl {

Mesh::Mesh(int ranks) : size_(ranks) {
  check(ranks >= 1, "a mesh has at least one rank");
  int rest = ranks;
  for (int p = 2; p * p <= rest; ++p) {
    for (; rest % p == 0; rest /= p) sizes_.push_back(p);
  }
  if (rest > 1) sizes_.push_back(rest);
  std::reverse(sizes_.begin(), sizes_.end());
  strides_.assign(sizes_.size(), 1);
  for (int a = num_axes() - 2; a >= 0; --a) strides_[a] = strides_[a + 1] * sizes_[a + 1];
}

int Mesh::coordinate(int rank_in_stage, Axis axis) const { return rank_in_stage / strides_[axis] % sizes_[axis]; }

int Mesh::ways(const Axes& axes) const {
  int product = 1;
  for (Axis a : axes) product *= sizes_[a];
  return product;
}

int Mesh::index(int rank_in_stage, const Axes& axes) const {
  int index = 0;
  for (Axis a : axes) index = index * sizes_[a] + coordinate(rank_in_stage, a);
  return index;
}

int Mesh::without(int rank_in_stage, const Axes& axes) const {
  int base = rank_in_stage;
  for (Axis a : axes) base -= coordinate(rank_in_stage, a) * strides_[a];
  return base;
}

std::vector<int> Mesh::group(int rank_in_stage, const Axes& axes) const {
  std::vector<int> ranks = {without(rank_in_stage, axes)};
  for (Axis a : axes) {
    std::vector<int> wider;
    wider.reserve(ranks.size() * sizes_[a]);
    for (int rank : ranks) {
      for (int c = 0; c < sizes_[a]; ++c) wider.push_back(rank + c * strides_[a]);
    }
    ranks = std::move(wider);
  }
  return ranks;
}

Axes without(const Axes& axes, const Axes& removed) {
  Axes kept;
  for (Axis a : axes) {
    if (std::find(removed.begin(), removed.end(), a) == removed.end()) kept.push_back(a);
  }
  return kept;
}

std::string to_string(const Mesh& mesh) {
  std::string text;
  for (int size : mesh.axis_sizes()) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text.empty() ? "1" : text;
}

}  // namespace trainctl
