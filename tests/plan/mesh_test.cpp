// Tests of meshes and layouts: coordinates, groups, local parts.
#include "engine/plan/mesh.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "engine/plan/layout.h"

using namespace trainctl;

namespace {

// Every ordered choice of distinct axes of a mesh.
std::vector<Axes> ordered_axes(const Mesh& mesh) {
  std::vector<Axes> all = {{}};
  for (size_t i = 0; i < all.size(); ++i) {
    for (Axis a = 0; a < mesh.num_axes(); ++a) {
      if (std::find(all[i].begin(), all[i].end(), a) != all[i].end()) continue;
      Axes longer = all[i];
      longer.push_back(a);
      all.push_back(longer);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("a mesh has the prime factors of its ranks, largest first") {
  CHECK(Mesh(1).axis_sizes().empty());
  CHECK(Mesh(8).axis_sizes() == std::vector<int>{2, 2, 2});
  CHECK(Mesh(6).axis_sizes() == std::vector<int>{3, 2});
  CHECK(Mesh(12).axis_sizes() == std::vector<int>{3, 2, 2});
  CHECK(Mesh(7).axis_sizes() == std::vector<int>{7});
  CHECK(to_string(Mesh(12)) == "3x2x2");
  CHECK(to_string(Mesh(1)) == "1");
}

TEST_CASE("coordinates give the rank, with axis 0 the slowest") {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    const Mesh mesh(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      int back = 0;
      for (Axis a = 0; a < mesh.num_axes(); ++a) back = back * mesh.axis_size(a) + mesh.coordinate(rank, a);
      CHECK(back == rank);
    }
  }
}

TEST_CASE("a group holds the ranks that differ only in its axes, in block order, and the groups partition the ranks") {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    const Mesh mesh(ranks);
    for (const Axes& axes : ordered_axes(mesh)) {
      std::set<std::vector<int>> groups;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<int> group = mesh.group(rank, axes);
        REQUIRE(static_cast<int>(group.size()) == mesh.ways(axes));
        CHECK(group[mesh.index(rank, axes)] == rank);
        for (int i = 0; i < static_cast<int>(group.size()); ++i) {
          CHECK(mesh.index(group[i], axes) == i);
          for (Axis a = 0; a < mesh.num_axes(); ++a) {
            const bool in_group = std::find(axes.begin(), axes.end(), a) != axes.end();
            if (!in_group) CHECK(mesh.coordinate(group[i], a) == mesh.coordinate(rank, a));
          }
        }
        groups.insert(group);
      }
      CHECK(groups.size() * mesh.ways(axes) == static_cast<size_t>(ranks));
    }
  }
}

TEST_CASE("the local parts of a cut tensor tile it") {
  const Mesh mesh(12);
  const Layout layout{{{1}, {2, 0}, {}}, {}};
  const Shape global = {4, 12, 3};
  CHECK(layout.local_shape(mesh, global) == Shape{2, 2, 3});
  std::set<Shape> offsets;
  for (int rank = 0; rank < 12; ++rank) offsets.insert(layout.local_offset(mesh, global, rank));
  CHECK(offsets.size() == 12);
  for (const Shape& offset : offsets) {
    CHECK(offset[0] % 2 == 0);
    CHECK(offset[1] % 2 == 0);
    CHECK(offset[2] == 0);
  }
}

TEST_CASE("a layout's text shows cuts, and axes if the mesh has several") {
  CHECK(to_string(Layout{{{0}, {}}, {}}, Mesh(2)) == "[2, 1]");
  CHECK(to_string(Layout{{{0, 2}, {}}, {1}}, Mesh(8)) == "[4@0.2, 1]+sum(2@1)");
  CHECK(to_string(Layout::replicated(1), Mesh(1)) == "[1]");
}

TEST_CASE("a tensor is replicated over axes that neither cut nor sum it") {
  CHECK(Layout{{{1}}, {0}}.replica_axes(Mesh(8)) == Axes{2});
  CHECK(Layout::replicated(2).replica_axes(Mesh(6)) == Axes{0, 1});
}
