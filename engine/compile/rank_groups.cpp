// A group of communicating ranks, described by one value for all groups of a kind.
#include "engine/compile/rank_groups.h"

#include <algorithm>
#include <optional>

namespace trainctl {
namespace {

/// Returns the axes for which mesh.group(ranks[0], axes) equals `ranks` (ranks in stage); empty if there are none.
std::optional<Axes> axes_of(const Mesh& mesh, const std::vector<int>& ranks) {
  std::vector<std::pair<size_t, Axis>> found;  // position of the rank one step along the axis
  for (Axis axis = 0; axis < mesh.num_axes(); ++axis) {
    const auto differs = [&](int rank) { return mesh.coordinate(rank, axis) != mesh.coordinate(ranks[0], axis); };
    const auto step = std::find_if(ranks.begin(), ranks.end(), differs);
    if (step != ranks.end()) found.emplace_back(step - ranks.begin(), axis);
  }
  std::sort(found.rbegin(), found.rend());
  Axes axes;
  for (const auto& [place, axis] : found) axes.push_back(axis);
  if (mesh.ways(axes) != static_cast<int>(ranks.size()) || mesh.group(ranks[0], axes) != ranks) return std::nullopt;
  return axes;
}

/// Describes the ranks by axes of the mesh in one or more stages. Returns nullopt if they are not such a group.
std::optional<GroupKind> of_mesh(const Mesh& mesh, const std::vector<int>& ranks) {
  GroupKind group;
  std::vector<int> first;  // ranks in the first stage
  for (size_t i = 0; i < ranks.size();) {
    if (ranks[i] < 0) return std::nullopt;
    const int stage = ranks[i] / mesh.size();
    std::vector<int> in_stage;
    for (; i < ranks.size() && ranks[i] / mesh.size() == stage; ++i) in_stage.push_back(ranks[i] % mesh.size());
    if (first.empty()) first = in_stage;
    if (first != in_stage) return std::nullopt;
    group.stages.push_back(stage);
  }
  const std::optional<Axes> axes = axes_of(mesh, first);
  if (!axes) return std::nullopt;
  group.axes = *axes;
  return group;
}

}  // namespace

int GroupKind::size(const Mesh& mesh) const {
  return is_of_mesh() ? static_cast<int>(stages.size()) * mesh.ways(axes) : static_cast<int>(ranks.size());
}

std::vector<int> GroupKind::members(const Mesh& mesh, int rank) const {
  if (!is_of_mesh()) return ranks;
  std::vector<int> all;
  const std::vector<int> in_stage = mesh.group(rank % mesh.size(), axes);
  for (int stage : stages)
    for (int r : in_stage) all.push_back(stage * mesh.size() + r);
  return all;
}

int GroupKind::first(const Mesh& mesh, int rank) const {
  if (!is_of_mesh()) return ranks.front();
  return stages.front() * mesh.size() + mesh.without(rank % mesh.size(), axes);
}

GroupKind group_of_ranks(const Mesh& mesh, const std::vector<int>& ranks, int rank) {
  if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
    if (std::optional<GroupKind> group = of_mesh(mesh, ranks)) return *group;
  }
  return {{}, {}, ranks};
}

}  // namespace trainctl
