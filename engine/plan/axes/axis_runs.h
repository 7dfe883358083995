// Finds the axes of a mesh that a redistribution moves together.
#pragma once

#include <vector>

#include "engine/plan/layout.h"

namespace trainctl {

/// Runs of axes that are adjacent in both layouts: next to each other in one dim, both in the partial sum, or both
/// unused.
class AxisRuns {
 public:
  AxisRuns(const Mesh& mesh, const Layout& from, const Layout& to);

  bool together(Axis a, Axis b) const { return run_[a] == run_[b]; }
  /// Splits `axes`, which must consist of whole runs, into its runs.
  std::vector<Axes> of(const Axes& axes) const;

 private:
  std::vector<int> run_;  ///< index of each axis's run
};

}  // namespace trainctl
