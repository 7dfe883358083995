// Local shapes and offsets of a layout, and its text.
#include "engine/plan/layout.h"

#include <algorithm>

#include "engine/base/error.h"

namespace trainctl {

bool Layout::uses(Axis axis) const {
  const auto has = [axis](const Axes& axes) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); };
  return has(partial) || std::any_of(dims.begin(), dims.end(), has);
}

Axes Layout::replica_axes(const Mesh& mesh) const {
  Axes axes;
  for (Axis a = 0; a < mesh.num_axes(); ++a) {
    if (!uses(a)) axes.push_back(a);
  }
  return axes;
}

Shape Layout::local_shape(const Mesh& mesh, const Shape& global) const {
  check(global.size() == dims.size(), "a layout has one entry per dim");
  Shape local = global;
  for (size_t d = 0; d < dims.size(); ++d) {
    const int ways = mesh.ways(dims[d]);
    check(global[d] % ways == 0, "every cut divides its dim");
    local[d] /= ways;
  }
  return local;
}

Shape Layout::local_offset(const Mesh& mesh, const Shape& global, int rank_in_stage) const {
  Shape offset = local_shape(mesh, global);
  for (size_t d = 0; d < dims.size(); ++d) offset[d] *= mesh.index(rank_in_stage, dims[d]);
  return offset;
}

namespace {

// "4", or "4@0.1" if the axes matter.
std::string ways_text(const Mesh& mesh, const Axes& axes) {
  std::string text = std::to_string(mesh.ways(axes));
  if (mesh.num_axes() < 2 || axes.empty()) return text;
  for (size_t i = 0; i < axes.size(); ++i) text += (i == 0 ? "@" : ".") + std::to_string(axes[i]);
  return text;
}

}  // namespace

std::string cut_text(int64_t ways) { return ways == 1 ? "not cut" : "cut " + std::to_string(ways) + " ways"; }

std::string to_string(const Layout& layout, const Mesh& mesh) {
  std::string text = "[";
  for (size_t d = 0; d < layout.dims.size(); ++d) text += (d == 0 ? "" : ", ") + ways_text(mesh, layout.dims[d]);
  text += "]";
  if (layout.is_partial()) text += "+sum(" + ways_text(mesh, layout.partial) + ")";
  return text;
}

}  // namespace trainctl
