// Executes redistributions on real numbers: every rank holds its local array, each step applies its collective, and the
// result must be the slices of the whole tensor.
#include "engine/plan/traffic/redistribution.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using namespace trainctl;

namespace {

using Array = std::vector<double>;  // row-major
using PerRank = std::vector<Array>;

int64_t flat(const Shape& shape, const Shape& at) {
  int64_t index = 0;
  for (size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + at[d];
  return index;
}

template <class Visit>
void for_each_index(const Shape& shape, Visit visit) {
  Shape at(shape.size(), 0);
  for (int64_t i = 0; i < num_elements(shape); ++i) {
    visit(at);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < shape[d]) break;
      at[d] = 0;
    }
  }
}

Array block(const Array& array, const Shape& shape, const Shape& offset, const Shape& size) {
  Array part;
  for_each_index(size, [&](const Shape& at) {
    Shape source = at;
    for (size_t d = 0; d < at.size(); ++d) source[d] += offset[d];
    part.push_back(array[flat(shape, source)]);
  });
  return part;
}

void paste(Array& array, const Shape& shape, const Shape& offset, const Array& part, const Shape& size) {
  size_t i = 0;
  for_each_index(size, [&](const Shape& at) {
    Shape target = at;
    for (size_t d = 0; d < at.size(); ++d) target[d] += offset[d];
    array[flat(shape, target)] = part[i++];
  });
}

// The value of element i of the whole tensor. Each term `t` of a partial sum is a fixed share of it.
double whole_value(int64_t i) { return static_cast<double>(i * 7 % 1009 + 1); }
double share(int term, int terms) { return term + 1 < terms ? 0.25 * term : 1 - 0.125 * (terms - 1) * (terms - 2); }

PerRank lay_out(const Mesh& mesh, const Shape& shape, const Layout& layout) {
  PerRank ranks;
  Array whole;
  for (int64_t i = 0; i < num_elements(shape); ++i) whole.push_back(whole_value(i));
  for (int r = 0; r < mesh.size(); ++r) {
    Array local = block(whole, shape, layout.local_offset(mesh, shape, r), layout.local_shape(mesh, shape));
    const double factor = share(mesh.index(r, layout.partial), mesh.ways(layout.partial));
    for (double& v : local) v *= factor;
    ranks.push_back(local);
  }
  return ranks;
}

Array sum_of(const PerRank& now, const std::vector<int>& group) {
  Array total(now[group[0]].size(), 0.0);
  for (int r : group) {
    for (size_t i = 0; i < total.size(); ++i) total[i] += now[r][i];
  }
  return total;
}

// The contents of rank r after the step, computed from the contents that the ranks of its group had before.
Array after_step(const Mesh& mesh, const Shape& shape, const RedistributionStep& step, const PerRank& now, int r) {
  const std::vector<int> group = mesh.group(r, step.axes);
  const int mine = mesh.index(r, step.axes);
  const int64_t ways = mesh.ways(step.axes);
  const Shape before = step.before.local_shape(mesh, shape);
  const Shape after = step.after.local_shape(mesh, shape);
  Shape origin(shape.size(), 0);
  switch (step.kind) {
    case StepKind::slice:
      origin[step.dim] = after[step.dim] * mine;
      return block(now[r], before, origin, after);
    case StepKind::all_reduce:
      return sum_of(now, group);
    case StepKind::reduce_scatter:
      origin[step.dim] = after[step.dim] * mine;
      return block(sum_of(now, group), before, origin, after);
    case StepKind::all_gather: {
      Array result(num_elements(after));
      for (int64_t g = 0; g < ways; ++g) {
        origin[step.dim] = before[step.dim] * g;
        paste(result, after, origin, now[group[g]], before);
      }
      return result;
    }
    case StepKind::all_to_all: {
      Array result(num_elements(after));
      Shape piece = before;
      piece[step.to_dim] /= ways;
      for (int64_t g = 0; g < ways; ++g) {
        Shape source(shape.size(), 0);
        source[step.to_dim] = piece[step.to_dim] * mine;
        origin[step.dim] = before[step.dim] * g;
        paste(result, after, origin, block(now[group[g]], before, source, piece), piece);
      }
      return result;
    }
  }
  return {};
}

Layout random_layout(const Mesh& mesh, int ndim, bool may_be_partial, std::mt19937& random) {
  Layout layout = Layout::replicated(ndim);
  Axes axes;
  for (Axis a = 0; a < mesh.num_axes(); ++a) axes.push_back(a);
  std::shuffle(axes.begin(), axes.end(), random);
  for (Axis a : axes) {
    const int place = static_cast<int>(random() % (ndim + 2));
    if (place < ndim) layout.dims[place].push_back(a);
    if (place == ndim && may_be_partial) layout.partial.push_back(a);
  }
  std::sort(layout.partial.begin(), layout.partial.end());
  return layout;
}

// The time of a redistribution without any planning: sum everything, gather every dim, then slice.
double naive_seconds(const Mesh& mesh, const Shape& shape, const Layout& from, const Layout& to,
                     const CostModel& cost) {
  std::vector<RedistributionStep> steps;
  Layout now = from;
  const auto add = [&](StepKind kind, int dim, const Axes& axes, const Layout& after) {
    steps.push_back({kind, dim, -1, axes, now, after});
    now = after;
  };
  Layout next = now;
  next.partial = {};
  if (now.is_partial()) add(StepKind::all_reduce, -1, now.partial, next);
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (now.dims[d].empty()) continue;
    next = now;
    next.dims[d] = {};
    add(StepKind::all_gather, d, Axes(now.dims[d]), next);
  }
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (to.dims[d].empty()) continue;
    next = now;
    next.dims[d] = to.dims[d];
    add(StepKind::slice, d, to.dims[d], next);
  }
  return redistribution_seconds(mesh, shape, DType::f32, steps, cost);
}

bool close(const PerRank& a, const PerRank& b) {
  for (size_t r = 0; r < a.size(); ++r) {
    if (a[r].size() != b[r].size()) return false;
    for (size_t i = 0; i < a[r].size(); ++i) {
      if (std::abs(a[r][i] - b[r][i]) > 1e-9 * std::abs(b[r][i])) return false;
    }
  }
  return true;
}

std::vector<RedistributionStep> plan(const Mesh& mesh, const Shape& shape, const Layout& from, const Layout& to) {
  return plan_redistribution(mesh, shape, DType::f32, from, to, CostModel());
}

}  // namespace

TEST_CASE("any layout becomes any other with the right numbers on every rank, at no more than the naive cost") {
  std::mt19937 random(1);
  for (int ranks : {2, 3, 4, 6, 8, 12}) {
    const Mesh mesh(ranks);
    for (int trial = 0; trial < 200; ++trial) {
      const int ndim = 1 + static_cast<int>(random() % 3);
      const Shape shape(ndim, ranks);
      const Layout from = random_layout(mesh, ndim, true, random);
      const Layout to = random_layout(mesh, ndim, false, random);
      CAPTURE(to_string(from, mesh));
      CAPTURE(to_string(to, mesh));
      const auto steps = plan(mesh, shape, from, to);
      PerRank now = lay_out(mesh, shape, from);
      Layout at = from;
      for (const RedistributionStep& step : steps) {
        CAPTURE(to_string(step));
        REQUIRE(step.before == at);
        PerRank next;
        for (int r = 0; r < ranks; ++r) next.push_back(after_step(mesh, shape, step, now, r));
        now = next;
        at = step.after;
      }
      REQUIRE(at == to);
      CHECK(close(now, lay_out(mesh, shape, to)));
      const CostModel cost = CostModel();
      CHECK(redistribution_seconds(mesh, shape, DType::f32, steps, cost) <=
            naive_seconds(mesh, shape, from, to, cost) * (1 + 1e-9));
    }
  }
}

TEST_CASE("a partial sum may stay one over some of its axes") {
  const Mesh mesh(8);
  const auto steps = plan(mesh, {8, 8}, Layout{{{}, {}}, {0, 1, 2}}, Layout{{{1}, {}}, {2}});
  CHECK(steps.back().after == Layout{{{1}, {}}, {2}});
}

TEST_CASE("gathering a dim that three axes cut is one all_gather") {
  const auto steps = plan(Mesh(8), {64, 32}, Layout{{{0, 1, 2}, {}}, {}}, Layout::replicated(2));
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].kind == StepKind::all_gather);
  CHECK(steps[0].axes == Axes{0, 1, 2});
  CHECK(to_string(steps[0]) == "all_gather dim 0 over axes {0,1,2}");
}

TEST_CASE("the common redistributions use the best collective") {
  const Mesh mesh(4);
  const auto only = [&](const Layout& from, const Layout& to) {
    const auto steps = plan(mesh, {64, 64}, from, to);
    return steps.size() == 1 ? std::string(to_string(steps[0].kind)) : std::to_string(steps.size()) + " steps";
  };
  CHECK(only(Layout::replicated(2), Layout{{{}, {0, 1}}, {}}) == "slice");
  CHECK(only(Layout{{{}, {}}, {0, 1}}, Layout::replicated(2)) == "all_reduce");
  CHECK(only(Layout{{{}, {}}, {0, 1}}, Layout{{{0, 1}, {}}, {}}) == "reduce_scatter");
  CHECK(only(Layout{{{0, 1}, {}}, {}}, Layout{{{}, {0, 1}}, {}}) == "all_to_all");
  CHECK(only(Layout{{{0}, {1}}, {}}, Layout{{{0}, {1}}, {}}) == "0 steps");
}

TEST_CASE("adjacent axes move together, on a mesh of 65,536 ranks too") {
  const Mesh mesh(65536);
  REQUIRE(mesh.num_axes() == 16);
  Axes all, half, other;
  for (Axis a = 0; a < 16; ++a) {
    all.push_back(a);
    (a < 8 ? half : other).push_back(a);
  }
  const Shape shape = {65536, 65536};
  const auto kinds = [&](const Layout& from, const Layout& to) {
    std::vector<StepKind> found;
    for (const RedistributionStep& step : plan_redistribution(mesh, shape, DType::f32, from, to, CostModel()))
      found.push_back(step.kind);
    return found;
  };
  using enum StepKind;
  using Kinds = std::vector<StepKind>;
  const Layout sum{{{}, {}}, all};
  CHECK(kinds(sum, {{{}, {}}, {}}) == Kinds{all_reduce});
  CHECK(kinds(sum, {{all, {}}, {}}) == Kinds{reduce_scatter});
  CHECK(kinds(sum, {{half, other}, {}}) == Kinds{reduce_scatter, reduce_scatter});
  CHECK(kinds(sum, {{half, {}}, {}}) == Kinds{reduce_scatter, all_reduce});
  CHECK(kinds({{all, {}}, {}}, {{{}, all}, {}}) == Kinds{all_to_all});
  CHECK(kinds({{all, {}}, {}}, {{{}, {}}, {}}) == Kinds{all_gather});
  CHECK(kinds({{half, other}, {}}, {{half, {}}, {}}) == Kinds{all_gather});
}

TEST_CASE("if 16 dims change at once the direct path is taken") {
  const Mesh mesh(65536);
  Layout sum = Layout::replicated(16), cut = Layout::replicated(16);
  for (Axis a = 0; a < 16; ++a) {
    sum.partial.push_back(a);
    cut.dims[a] = {15 - a};
  }
  const Shape shape(16, 2);
  const auto steps = plan_redistribution(mesh, shape, DType::f32, sum, cut, CostModel());
  REQUIRE(steps.size() == 16);
  for (const RedistributionStep& step : steps) CHECK(step.kind == StepKind::reduce_scatter);
  CHECK(steps.back().after == cut);

  Layout turned = Layout::replicated(16);
  for (Axis a = 0; a < 16; ++a) turned.dims[a] = {a};
  CHECK(plan_redistribution(mesh, shape, DType::f32, cut, turned, CostModel()).back().after == turned);
}

TEST_CASE("bytes on the wire are exact, even for the largest tensor over the most ranks") {
  constexpr int64_t kBytes = int64_t{1} << 60;
  CHECK(wire_bytes(Collective::all_gather, kBytes, 65536) == kBytes - (kBytes >> 16));
  CHECK(wire_bytes(Collective::all_reduce, kBytes, 65536) == 2 * (kBytes - (kBytes >> 16)));
  for (const int ranks : {2, 3, 5, 7, 12})
    for (const int64_t bytes : {1, 4, 100, 1001})
      CHECK(wire_bytes(Collective::reduce_scatter, bytes, ranks) == bytes * (ranks - 1) / ranks);
}
