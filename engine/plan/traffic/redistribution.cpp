// Dijkstra over layouts. Only moves towards the target are tried: axes already in their target position are never
// moved again, and a dim is only cut by the target's next axes. Axes that are adjacent at both ends move together:
// one call over several axes costs less than one call per axis. This keeps the space to a few dozen layouts
// regardless of the number of mesh axes, and every cut on the way divides its dim. If many dims change at once the
// space would be far larger, and a direct path is taken.
#include "engine/plan/traffic/redistribution.h"

#include <algorithm>
#include <array>
#include <map>
#include <queue>

#include "engine/base/error.h"
#include "engine/plan/axes/axis_runs.h"

namespace trainctl {
namespace {

size_t common_prefix(const Axes& a, const Axes& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

bool contains_all(const Axes& axes, const Axes& wanted) {
  return std::all_of(wanted.begin(), wanted.end(),
                     [&](Axis a) { return std::find(axes.begin(), axes.end(), a) != axes.end(); });
}

int64_t local_bytes(const Mesh& mesh, const Shape& shape, DType dtype, const Layout& layout) {
  return num_elements(layout.local_shape(mesh, shape)) * byte_size(dtype);
}

/// Returns the collective of a step that is not a slice.
Collective collective_of(StepKind kind) {
  switch (kind) {
    case StepKind::slice:
      break;
    case StepKind::all_gather:
      return Collective::all_gather;
    case StepKind::reduce_scatter:
      return Collective::reduce_scatter;
    case StepKind::all_reduce:
      return Collective::all_reduce;
    case StepKind::all_to_all:
      return Collective::all_to_all;
  }
  check(false, "a slice is not a collective");
  return Collective::all_reduce;
}

/// Returns the bytes of the larger of a step's input and output on one rank. `before` is the size of the input.
int64_t step_bytes(const Mesh& mesh, int64_t before, const RedistributionStep& step) {
  return step.kind == StepKind::all_gather ? before * mesh.ways(step.axes) : before;
}

double step_seconds(const Mesh& mesh, int64_t before, const RedistributionStep& step, const CostModel& cost) {
  const int64_t bytes = step_bytes(mesh, before, step);
  if (step.kind == StepKind::slice) return cost.copy_seconds(bytes / mesh.ways(step.axes));
  return cost.collective_seconds(collective_of(step.kind), bytes, mesh, step.axes);
}

class Moves {
 public:
  Moves(const Layout& now, const Layout& target, const AxisRuns& runs) : now_(now), target_(target), runs_(runs) {}

  /// Returns all steps that may come next from layout `now`. RedistributionStep::before, which is `now` for all of
  /// them, is not set.
  std::vector<RedistributionStep> all() {
    for (int d = 0; d < static_cast<int>(now_.dims.size()); ++d) {
      cut_further(d);
      undo_cuts(d);
    }
    sum_up();
    return std::move(steps_);
  }

 private:
  // Adds the steps slice and reduce_scatter, which cut dim d by the next axes that the target has there.
  void cut_further(int d) {
    const Axes& have = now_.dims[d];
    const Axes& want = target_.dims[d];
    if (common_prefix(have, want) != have.size()) return;
    for (size_t n = have.size() + 1; n <= want.size(); ++n) {
      if (splits_a_run(want, n)) continue;
      const Axes next(want.begin() + static_cast<std::ptrdiff_t>(have.size()),
                      want.begin() + static_cast<std::ptrdiff_t>(n));
      const bool free = std::none_of(next.begin(), next.end(), [&](Axis a) { return now_.uses(a); });
      if (free) add(StepKind::slice, d, -1, next).after.dims[d] = prefix(want, n);
      if (contains_all(now_.partial, next)) {
        Layout& after = add(StepKind::reduce_scatter, d, -1, next).after;
        after.dims[d] = prefix(want, n);
        after.partial = without(now_.partial, next);
      }
    }
  }

  // Adds the steps all_gather and all_to_all, which remove the last axes of dim d. Axes that are already in their
  // target position are not removed.
  void undo_cuts(int d) {
    const Axes& have = now_.dims[d];
    for (size_t keep = common_prefix(have, target_.dims[d]); keep < have.size(); ++keep) {
      if (splits_a_run(have, keep)) continue;
      const Axes last(have.begin() + static_cast<std::ptrdiff_t>(keep), have.end());
      add(StepKind::all_gather, d, -1, last).after.dims[d] = prefix(have, keep);
      for (int to = 0; to < static_cast<int>(now_.dims.size()); ++to) {
        if (to != d && wants_next(to, last)) {
          Layout& after = add(StepKind::all_to_all, d, to, last).after;
          after.dims[d] = prefix(have, keep);
          after.dims[to] = prefix(target_.dims[to], now_.dims[to].size() + last.size());
        }
      }
    }
  }

  // Adds the step all_reduce, for each run of axes over which the target is not partial, and finally for all of them.
  void sum_up() {
    const std::vector<Axes> open = runs_.of(without(now_.partial, target_.partial));
    for (unsigned subset = 1; subset < (1u << open.size()); ++subset) {
      Axes axes;
      for (size_t i = 0; i < open.size(); ++i) {
        if (subset >> i & 1u) axes.insert(axes.end(), open[i].begin(), open[i].end());
      }
      std::sort(axes.begin(), axes.end());
      add(StepKind::all_reduce, -1, -1, axes).after.partial = without(now_.partial, axes);
    }
  }

  bool splits_a_run(const Axes& axes, size_t at) const {
    return at > 0 && at < axes.size() && runs_.together(axes[at - 1], axes[at]);
  }

  bool wants_next(int d, const Axes& axes) const {
    const Axes& have = now_.dims[d];
    const Axes& want = target_.dims[d];
    return common_prefix(have, want) == have.size() && have.size() + axes.size() <= want.size() &&
           std::equal(axes.begin(), axes.end(), want.begin() + static_cast<std::ptrdiff_t>(have.size()));
  }

  static Axes prefix(const Axes& axes, size_t n) {
    return Axes(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(n));
  }

  RedistributionStep& add(StepKind kind, int dim, int to_dim, const Axes& axes) {
    return steps_.emplace_back(RedistributionStep{kind, dim, to_dim, axes, {}, now_});
  }

  const Layout& now_;
  const Layout& target_;
  const AxisRuns& runs_;
  std::vector<RedistributionStep> steps_;
};

struct Visit {
  double seconds = 0;
  bool settled = false;
  RedistributionStep arrival;  // the step that leads here; unused for the start
};

std::vector<RedistributionStep> path_to(const std::map<Layout, Visit>& visits, const Layout& from, const Layout& to) {
  std::vector<RedistributionStep> steps;
  for (const Layout* at = &to; *at != from; at = &steps.back().before) steps.push_back(visits.at(*at).arrival);
  std::reverse(steps.begin(), steps.end());
  return steps;
}

/// A tensor whose many dims all change has 3^dims intermediate layouts: beyond this number the direct path is
/// taken.
constexpr size_t kMostLayouts = 4000;

/// Steps that sum or move data without enlarging the tensor come first; of those, the ones over most axes at once.
std::vector<RedistributionStep> direct_way(const Layout& from, const Layout& to, const AxisRuns& runs) {
  const auto priority = [](const RedistributionStep& step) {
    static constexpr std::array kOrder = {StepKind::reduce_scatter, StepKind::all_to_all, StepKind::all_reduce,
                                          StepKind::all_gather, StepKind::slice};
    return std::find(kOrder.begin(), kOrder.end(), step.kind) - kOrder.begin();
  };
  std::vector<RedistributionStep> steps;
  for (Layout now = from; now != to; now = steps.back().after) {
    std::vector<RedistributionStep> moves = Moves(now, to, runs).all();
    const auto best = std::min_element(moves.begin(), moves.end(), [&](const auto& a, const auto& b) {
      return priority(a) != priority(b) ? priority(a) < priority(b) : a.axes.size() > b.axes.size();
    });
    check(best != moves.end(), "any layout must be reachable from any other with all_gather and slice");
    best->before = std::move(now);
    steps.push_back(std::move(*best));
  }
  return steps;
}

}  // namespace

std::string_view to_string(StepKind kind) {
  switch (kind) {
    case StepKind::slice:
      return "slice";
    case StepKind::all_gather:
      return "all_gather";
    case StepKind::reduce_scatter:
      return "reduce_scatter";
    case StepKind::all_reduce:
      return "all_reduce";
    case StepKind::all_to_all:
      return "all_to_all";
  }
  return "?";
}

std::vector<RedistributionStep> plan_redistribution(const Mesh& mesh, const Shape& shape, DType dtype,
                                                    const Layout& from, const Layout& to, const CostModel& cost) {
  if (from == to) return {};
  check(from.dims.size() == shape.size() && to.dims.size() == shape.size(), "both layouts are of this tensor");
  check(contains_all(from.partial, to.partial), "a complete tensor cannot become a partial sum");
  const AxisRuns runs(mesh, from, to);
  std::map<Layout, Visit> visits;
  using Entry = std::pair<double, const Layout*>;
  // Ties are broken by the layouts' order, so that every rank takes the same path.
  const auto later = [](const Entry& a, const Entry& b) {
    return a.first != b.first ? a.first > b.first : *b.second < *a.second;
  };
  std::priority_queue<Entry, std::vector<Entry>, decltype(later)> open(later);
  open.emplace(0.0, &visits.try_emplace(from).first->first);
  while (!open.empty()) {
    const auto [seconds, layout] = open.top();
    open.pop();
    Visit& visit = visits.at(*layout);
    if (visit.settled) continue;
    visit.settled = true;
    if (*layout == to) return path_to(visits, from, to);
    if (visits.size() > kMostLayouts) return direct_way(from, to, runs);
    const int64_t bytes = local_bytes(mesh, shape, dtype, *layout);
    for (RedistributionStep& step : Moves(*layout, to, runs).all()) {
      const double total = seconds + step_seconds(mesh, bytes, step, cost);
      const auto [next, fresh] = visits.try_emplace(step.after);
      if (!fresh && next->second.seconds <= total) continue;
      next->second.seconds = total;
      next->second.arrival = std::move(step);
      next->second.arrival.before = *layout;
      open.emplace(total, &next->first);
    }
  }
  check(false, "any layout must be reachable from any other with all_gather and slice");
  return {};
}

double redistribution_seconds(const Mesh& mesh, const Shape& shape, DType dtype,
                              const std::vector<RedistributionStep>& steps, const CostModel& cost) {
  double seconds = 0;
  for (const RedistributionStep& step : steps)
    seconds += step_seconds(mesh, local_bytes(mesh, shape, dtype, step.before), step, cost);
  return seconds;
}

double redistribution_bytes(const Mesh& mesh, const Shape& shape, DType dtype,
                            const std::vector<RedistributionStep>& steps) {
  double bytes = 0;
  for (const RedistributionStep& step : steps)
    if (step.kind != StepKind::slice)
      bytes += static_cast<double>(wire_bytes(collective_of(step.kind),
                                              step_bytes(mesh, local_bytes(mesh, shape, dtype, step.before), step),
                                              mesh.ways(step.axes)));
  return bytes;
}

std::string to_string(const RedistributionStep& step) {
  std::string text(to_string(step.kind));
  if (step.dim >= 0) text += " dim " + std::to_string(step.dim);
  if (step.to_dim >= 0) text += " to dim " + std::to_string(step.to_dim);
  text += " over axes {";
  for (size_t i = 0; i < step.axes.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(step.axes[i]);
  return text + "}";
}

}  // namespace trainctl
