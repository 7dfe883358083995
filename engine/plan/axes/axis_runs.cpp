// Groups the axes of a mesh into runs that a redistribution from one layout to another moves together.
#include "engine/plan/axes/axis_runs.h"

#include <algorithm>

namespace trainctl {
namespace {

constexpr int kPartial = -1, kNowhere = -2;

struct Place {
  int dim = kNowhere;
  size_t index = 0;
};

Place place(const Layout& layout, Axis axis) {
  for (size_t d = 0; d < layout.dims.size(); ++d) {
    const auto at = std::find(layout.dims[d].begin(), layout.dims[d].end(), axis);
    if (at != layout.dims[d].end()) return {static_cast<int>(d), static_cast<size_t>(at - layout.dims[d].begin())};
  }
  const bool partial = std::find(layout.partial.begin(), layout.partial.end(), axis) != layout.partial.end();
  return {partial ? kPartial : kNowhere, 0};
}

bool follows(const Place& before, const Place& after) {
  return before.dim == after.dim && (after.dim < 0 || after.index == before.index + 1);
}

/// Returns all axes of the mesh, in an order in which axes that cut one dim in either layout stand in the order of that
/// dim.
Axes in_order(const Mesh& mesh, const Layout& from, const Layout& to) {
  Axes order;
  const auto add = [&](Axis a) {
    if (std::find(order.begin(), order.end(), a) == order.end()) order.push_back(a);
  };
  for (const Axes& axes : from.dims) std::for_each(axes.begin(), axes.end(), add);
  for (const Axes& axes : to.dims) std::for_each(axes.begin(), axes.end(), add);
  for (Axis a = 0; a < mesh.num_axes(); ++a) add(a);
  return order;
}

}  // namespace

AxisRuns::AxisRuns(const Mesh& mesh, const Layout& from, const Layout& to) : run_(mesh.num_axes()) {
  std::vector<std::pair<Place, Place>> last;  // of each run's last axis
  for (Axis a : in_order(mesh, from, to)) {
    const std::pair<Place, Place> places{place(from, a), place(to, a)};
    const auto run = std::find_if(last.begin(), last.end(), [&](const auto& before) {
      return follows(before.first, places.first) && follows(before.second, places.second);
    });
    run_[a] = static_cast<int>(run - last.begin());
    if (run == last.end())
      last.push_back(places);
    else
      *run = places;
  }
}

std::vector<Axes> AxisRuns::of(const Axes& axes) const {
  std::vector<Axes> runs;
  for (Axis a : axes) {
    const auto same = std::find_if(runs.begin(), runs.end(), [&](const Axes& r) { return together(r[0], a); });
    if (same == runs.end())
      runs.push_back({a});
    else
      same->push_back(a);
  }
  return runs;
}

}  // namespace trainctl
