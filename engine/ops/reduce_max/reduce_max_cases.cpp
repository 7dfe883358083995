// Cases of reduce_max: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The largest element over the reduced dims.
Outputs reduce_max(const Inputs& in, const Attrs& attrs) {
  const Ints dims = attrs.ints("dims");
  const auto is_reduced = [&](size_t d) { return std::count(dims.begin(), dims.end(), static_cast<int64_t>(d)) > 0; };
  Shape shape;
  for (size_t d = 0; d < in[0].shape.size(); ++d) {
    if (!is_reduced(d)) shape.push_back(in[0].shape[d]);
    if (is_reduced(d) && attrs.flag("keep_dims")) shape.push_back(1);
  }
  Tensor64 y = make(shape.empty() ? Shape{1} : shape, [](const Index&) { return -INFINITY; });
  for (int64_t i = 0; i < num_elements(in[0].shape); ++i) {
    int64_t to = 0;
    const Index index = index_of(in[0].shape, i);
    for (size_t d = 0; d < index.size(); ++d)
      if (!is_reduced(d)) to = to * in[0].shape[d] + index[d];
    y.values[to] = std::max(y.values[to], in[0].values[i]);
  }
  return {y};
}

Attrs over(Ints dims, bool keep = false) { return {{"dims", std::move(dims)}, {"keep_dims", keep}}; }

}  // namespace

extern const OpCases reduce_max_cases = {
    .rows = {{"reduce_max", {{{6, 4}}}, over({1}), {{6}}},
             {"reduce_max", {{{6, 4}}}, over({0}, true), {{1, 4}}},
             {"reduce_max", {{{4, 6, 5}}}, over({0, 2}), {{6}}},
             {"reduce_max", {{{4, 6, 37}}}, over({1}, true), {{4, 1, 37}}},
             {"reduce_max", {{{6, 2, 7, 5}}}, over({2, 3}), {{6, 2}}},
             {"reduce_max", {{{4, 3, 37}}}, over({0, 1, 2}), {{1}}},
             {"reduce_max", {{{13}}}, over({0}), {{1}}},
             {"reduce_max", {{{2, 3, 2, 3, 2}}}, over({1, 3}), {{2, 2, 2}}},
             {"reduce_max", {{{3, 600}}}, over({1}), {{3}}},
             {"reduce_max", {{{5, 300}}}, over({0}), {{300}}},
             {"reduce_max", {{{3, 1}}}, over({1}), {{3}}}},
    .references = {{"reduce_max", reduce_max}},
    .rules = {{{"reduce_max", {{{2, 3, 4}}}, over({1})}, "abc->ac", "b", {{2, 4}}},
              {{"reduce_max", {{{2, 3, 4}}}, over({1, 2}, true)}, "abc->a()()", "bc", {{2, 1, 1}}},
              {{"reduce_max", {{{2, 3}}}, over({0, 1})}, "ab->()", "ab", {{1}}}},
    .gradients = {{{"reduce_max", {{{2, 3}}}, over({1})},
                   {"reduce_max_grad a,ab,a->ab"},
                   "it counts the largest elements over b, which is uncuttable"}},
    .shape_errors = {{{"reduce_max", {{{2, 3}}}, over({1, 1})},
                      "reduce_max: dims [1, 1] must be distinct dims of [2, 3]"}},
    .layers = {{"reduce_max", ", dims: [-1]", {8}},
               {"reduce_max", ", dims: [1], keep_dims: true", {8, 1}},
               {"reduce_min", ", dims: [-1]", {8}}},
};

}  // namespace trainctl
