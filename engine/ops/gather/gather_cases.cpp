// Cases of gather: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs gather(const Inputs& in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  Shape shape = in[0].shape;
  shape[dim] = in[1].shape[dim];
  return {make(shape, [&](Index i) {
    const Index of_index(i.begin(), i.begin() + static_cast<std::ptrdiff_t>(in[1].shape.size()));
    i[dim] = static_cast<int64_t>(at(in[1], of_index));
    return at(in[0], i);
  })};
}

Attrs gather_along(int64_t dim) { return {{"dim", dim}}; }

}  // namespace

extern const OpCases gather_cases = {
    .rows = {{"gather", {{{6, 12}}, ids({6, 4}, 12)}, gather_along(1), {{6, 4}}},
             {"gather", {{{4, 6, 5}}, ids({4, 8}, 6)}, gather_along(1), {{4, 8, 5}}},
             {"gather", {{{4, 6, 5}}, ids({4, 2, 5}, 6)}, gather_along(1), {{4, 2, 5}}},
             {"gather", {{{2, 3, 5}}, ids({2, 3, 7}, 5)}, gather_along(2), {{2, 3, 7}}},
             {"gather", {{{7, 3}}, ids({13}, 7)}, gather_along(0), {{13, 3}}}},
    .references = {{"gather", gather}},
    .rules = {{{"gather", {{{2, 5, 4}}, {{2, 3}, DType::i32}}, gather_along(1)}, "abc,ad->adc", "", {{2, 3, 4}}},
              {{"gather", {{{2, 5, 4}}, {{2, 3, 4}, DType::i32}}, gather_along(1)}, "abc,adc->adc", "", {{2, 3, 4}}}},
    .gradients = {{{"gather", {{{2, 5, 4}}, {{2, 3}, DType::i32}}, gather_along(1)},
                   {"gather_grad adc,ad->abc sums d"},
                   "a rank with some of d adds those whose index is in its part of b"}},
    .shape_errors =
        {{{"gather", {{{2, 5}}, {{2, 3}}}, gather_along(1)}, "gather: the index is [2, 3] f32, expected i32"},
         {{"gather", {{{2, 5}}, {{3, 3}, DType::i32}}, gather_along(1)},
          "gather: the index is [3, 3] i32; expected the shape of [2, 5], up to dim 1 or with all dims, and "
          "any size in that dim"}},
    .layers = {{"gather", ", inputs: [looked_up, data], dim: 1", {8, 5, 3}, true}},
};

}  // namespace trainctl
