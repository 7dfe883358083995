// Which axes of a mesh a redistribution moves together.
#pragma once

#include <vector>

#include "engine/plan/layout.h"

namespace trainctl {

/// Runs of axes that stand together in both layouts: next to one another in one dim, in a partial sum, or nowhere.
class AxisRuns {
 public:
  AxisRuns(const Mesh& mesh, const Layout& from, const Layout& to);

  bool together(Axis a, Axis b) const { return run_[a] == run_[b]; }
  /// The runs that `axes` consists of; it has whole runs alone.
  std::vector<Axes> of(const Axes& axes) const;

 private:
  std::vector<int> run_;  ///< of each axis
};

}  // namespace trainctl
