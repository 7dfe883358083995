// Cases of interpolate: its kernels in double precision, and the shapes, sharding rules and gradients to expect.
#include <algorithm>
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The convolution with Keys' kernel at `place` of dim, where elements beyond the ends have the values of the ends.
double cubic_sum(const Tensor64& x, Index i, size_t dim, double place) {
  const auto kernel = [](double d) {
    constexpr double a = -0.75;
    if (d <= 1) return (a + 2) * d * d * d - (a + 3) * d * d + 1;
    return d < 2 ? a * d * d * d - 5 * a * d * d + 8 * a * d - 4 * a : 0.0;
  };
  double sum = 0;
  for (auto at = static_cast<int64_t>(std::floor(place)) - 1; at <= static_cast<int64_t>(std::floor(place)) + 2; ++at) {
    i[dim] = std::clamp<int64_t>(at, 0, x.shape[dim] - 1);
    sum += kernel(std::abs(place - static_cast<double>(at))) * naive::at(x, i);
  }
  return sum;
}

/// Computes each element of y from the elements of x around its source position.
Outputs interpolate(const Inputs& in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  const double ratio = attrs.number("ratio"), last = static_cast<double>(in[0].shape[dim] - 1);
  Shape shape = in[0].shape;
  shape[dim] = attrs.integer("to");
  return {make(shape, [&](Index i) {
    const auto o = static_cast<double>(i[dim]);
    const double source = attrs.flag("align_corners") ? o * ratio : (o + 0.5) * ratio - 0.5;
    if (attrs.flag("cubic")) return cubic_sum(in[0], i, dim, source);
    if (!attrs.flag("linear")) {
      i[dim] = static_cast<int64_t>(std::min(last, std::floor(o * ratio)));
      return at(in[0], i);
    }
    const double place = std::clamp(source, 0.0, last);
    i[dim] = static_cast<int64_t>(std::floor(place));
    const double low = at(in[0], i), share = place - std::floor(place);
    if (share == 0) return low;
    ++i[dim];
    return (1 - share) * low + share * at(in[0], i);
  })};
}

Attrs resized(int64_t dim, int64_t from, int64_t to, bool linear, bool align_corners = false) {
  const double ratio = align_corners ? (to > 1 ? static_cast<double>(from - 1) / static_cast<double>(to - 1) : 0.0)
                                     : static_cast<double>(from) / static_cast<double>(to);
  return {{"dim", dim}, {"ratio", ratio}, {"linear", linear}, {"align_corners", align_corners}, {"to", to}};
}

Attrs resized_cubic(int64_t dim, int64_t from, int64_t to, bool align_corners = false) {
  Attrs attrs = resized(dim, from, to, false, align_corners);
  attrs.set("cubic", true);
  return attrs;
}

}  // namespace

extern const OpCases interpolate_cases = {
    .rows = {{"interpolate", {{{2, 3, 4, 6}}}, resized(2, 4, 8, true), {{2, 3, 8, 6}}},
             {"interpolate", {{{2, 3, 4, 6}}}, resized(3, 6, 4, true), {{2, 3, 4, 4}}},
             {"interpolate", {{{2, 3, 6}}}, resized(2, 6, 13, true, true), {{2, 3, 13}}},
             {"interpolate", {{{2, 2, 8, 3}}}, resized(2, 8, 3, true, true), {{2, 2, 3, 3}}},
             {"interpolate", {{{2, 3, 5}}}, resized(2, 5, 1, true, true), {{2, 3, 1}}},
             {"interpolate", {{{4, 2, 1, 3}}}, resized(2, 1, 4, true), {{4, 2, 4, 3}}},
             {"interpolate", {{{2, 3, 4, 5}}}, resized(2, 4, 12, false), {{2, 3, 12, 5}}},
             {"interpolate", {{{2, 3, 7}}}, resized(2, 7, 4, false), {{2, 3, 4}}},
             {"interpolate", {{{2, 2, 6, 4}}}, resized_cubic(2, 6, 12), {{2, 2, 12, 4}}},
             {"interpolate", {{{2, 2, 9}}}, resized_cubic(2, 9, 4), {{2, 2, 4}}},
             {"interpolate", {{{2, 2, 5}}}, resized_cubic(2, 5, 8, true), {{2, 2, 8}}},
             {"interpolate", {{{3, 2, 1, 2}}}, resized_cubic(2, 1, 3), {{3, 2, 3, 2}}}},
    .references = {{"interpolate", interpolate}},
    .rules = {{{"interpolate", {{{2, 3, 4}}}, resized(1, 3, 6, true)}, "abc->adc", "", {{2, 6, 4}}}},
    .gradients = {{{"interpolate", {{{2, 3, 4}}}, resized(1, 3, 6, true)},
                   {"interpolate_grad adc->abc sums d"},
                   "a rank with a part of d adds the terms that come from that part"}},
    .shape_errors = {{{"interpolate", {{{2, 3}}}, resized(2, 3, 6, true)}, "interpolate: there is no dim 2 in [2, 3]"}},
    .layers = {{"interpolate", ", size: [8, 5], mode: bilinear", {8, 3, 8, 5}, false, {3, 4, 3}},
               {"interpolate", ", scale: 2, mode: bilinear, align_corners: true", {8, 3, 8, 6}, false, {3, 4, 3}},
               {"interpolate", ", scale: [2, 0.7]", {8, 3, 8, 2}, false, {3, 4, 3}},
               {"interpolate", ", size: [7, 2], mode: bicubic", {8, 3, 7, 2}, false, {3, 4, 3}},
               {"interpolate", ", size: 7, mode: linear", {8, 3, 7}, false, {3, 4}}},
};

}  // namespace trainctl
