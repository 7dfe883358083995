// Cases of reduce_sum: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// Adds each element of x, times the scale, to its element of y.
Outputs reduce_sum(const Inputs& in, const Attrs& attrs) {
  const Ints dims = attrs.ints("dims");
  Shape shape;
  for (size_t d = 0; d < in[0].shape.size(); ++d) {
    const bool summed = std::count(dims.begin(), dims.end(), static_cast<int64_t>(d)) > 0;
    if (!summed) shape.push_back(in[0].shape[d]);
    if (summed && attrs.flag("keep_dims")) shape.push_back(1);
  }
  if (shape.empty()) shape = {1};
  Tensor64 y = zeros(shape);
  for (int64_t i = 0; i < num_elements(in[0].shape); ++i) {
    int64_t to = 0;
    const Index index = index_of(in[0].shape, i);
    for (size_t d = 0; d < index.size(); ++d) {
      if (std::count(dims.begin(), dims.end(), static_cast<int64_t>(d)) == 0) to = to * in[0].shape[d] + index[d];
    }
    y.values[to] += attrs.number("scale", 1.0) * in[0].values[i];
  }
  return {y};
}

Attrs reduction(Ints dims, bool keep, double scale) {
  return {{"dims", std::move(dims)}, {"keep_dims", keep}, {"scale", scale}};
}

}  // namespace

extern const OpCases reduce_sum_cases = {
    .rows = {{"reduce_sum", {{{6, 4}}}, reduction({1}, false, 1.0), {{6}}},
             {"reduce_sum", {{{6, 4}}}, reduction({0}, true, 1.0 / 6), {{1, 4}}},
             {"reduce_sum", {{{4, 6, 5}}}, reduction({0, 2}, false, 0.05), {{6}}},
             {"reduce_sum", {{{4, 6, 5}}}, reduction({1}, true, 1.0), {{4, 1, 5}}},
             {"reduce_sum", {{{4, 3, 37}}}, reduction({0, 1, 2}, false, 1.0), {{1}}},
             {"reduce_sum", {{{13}}}, reduction({0}, false, 1.0), {{1}}},
             {"reduce_sum", {{{2, 3, 2, 3, 2}}}, reduction({1, 3}, false, 1.0), {{2, 2, 2}}},
             {"reduce_sum", {{{3, 600}}}, reduction({0}, false, 1.0), {{600}}}},
    .references = {{"reduce_sum", reduce_sum}},
    .rules =
        {{{"reduce_sum", {{{2, 3, 4}}}, {{"dims", Ints{1}}}}, "abc->ac", "", {{2, 4}}},
         {{"reduce_sum", {{{2, 3, 4}}}, {{"dims", Ints{1, 2}}, {"keep_dims", true}}}, "abc->a()()", "", {{2, 1, 1}}},
         {{"reduce_sum", {{{2, 3}}}, {{"dims", Ints{0, 1}}}}, "ab->()", "", {{1}}}},
    .gradients = {{{"reduce_sum", {{{2, 3}}}, {{"dims", Ints{1}}}},
                   {"broadcast_to a->ab"},
                   "y was reduced over b, so every rank has the whole dy, and each block of b gets the same values"},
                  {{"reduce_sum", {{{2, 3}}}, {{"dims", Ints{0}}, {"keep_dims", true}}},
                   {"broadcast_to ()b->ab"},
                   "the same"}},
    .shape_errors = {{{"reduce_sum", {{{2, 3}}}, {{"dims", Ints{1, 1}}}},
                      "reduce_sum: dims [1, 1] must be distinct dims of [2, 3]"},
                     {{"reduce_sum", {{{2, 3}}}, {{"dims", Ints{2}}}},
                      "reduce_sum: dims [2] must be distinct dims of [2, 3]"}},
    .layers = {{"reduce_sum", ", dims: [-1]", {8}},
               {"reduce_mean", ", dims: [0, 1], keep_dims: true", {1, 1}},
               {"reduce_mean", ", dims: [0, 1]", {1}}},
};

}  // namespace trainctl
