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

/// For each element of y, the sum of the elements of x whose index names it.
Outputs scatter_add(const Inputs& in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  Shape shape = in[0].shape;
  shape[dim] = attrs.integer("size");
  return {make(shape, [&](Index i) {
    const int64_t own = i[dim];
    double sum = 0;
    for (i[dim] = 0; i[dim] < in[0].shape[dim]; ++i[dim]) {
      const Index of_index(i.begin(), i.begin() + static_cast<std::ptrdiff_t>(in[1].shape.size()));
      if (static_cast<int64_t>(at(in[1], of_index)) == own) sum += at(in[0], i);
    }
    return sum;
  })};
}

Attrs gather_along(int64_t dim) { return {{"dim", dim}}; }
Attrs scatter_to(int64_t dim, int64_t size) { return {{"dim", dim}, {"size", size}}; }

}  // namespace

extern const OpCases gather_cases = {
    .rows = {{"gather", {{{6, 12}}, ids({6, 4}, 12)}, gather_along(1), {{6, 4}}},
             {"gather", {{{4, 6, 5}}, ids({4, 8}, 6)}, gather_along(1), {{4, 8, 5}}},
             {"gather", {{{4, 6, 5}}, ids({4, 2, 5}, 6)}, gather_along(1), {{4, 2, 5}}},
             {"gather", {{{2, 3, 5}}, ids({2, 3, 7}, 5)}, gather_along(2), {{2, 3, 7}}},
             {"gather", {{{7, 3}}, ids({13}, 7)}, gather_along(0), {{13, 3}}},
             {"scatter_add", {{{6, 12}}, ids({6, 12}, 4)}, scatter_to(1, 4), {{6, 4}}},
             {"scatter_add", {{{4, 8, 5}}, ids({4, 8}, 6)}, scatter_to(1, 6), {{4, 6, 5}}},
             {"scatter_add", {{{2, 3, 4, 2}}, ids({2, 3, 4, 2}, 6)}, scatter_to(2, 6), {{2, 3, 6, 2}}}},
    .references = {{"gather", gather}, {"scatter_add", scatter_add}},
    .rules = {{{"gather", {{{2, 5, 4}}, {{2, 3}, DType::i32}}, gather_along(1)}, "abc,ad->adc", "", {{2, 3, 4}}},
              {{"gather", {{{2, 5, 4}}, {{2, 3, 4}, DType::i32}}, gather_along(1)}, "abc,adc->adc", "", {{2, 3, 4}}},
              {{"scatter_add", {{{2, 3, 4}}, {{2, 3}, DType::i32}}, scatter_to(1, 5)}, "abc,ab->adc", "", {{2, 5, 4}}}},
    .gradients = {{{"gather", {{{2, 5, 4}}, {{2, 3}, DType::i32}}, gather_along(1)},
                   {"gather_grad adc,ad->abc sums d"},
                   "a rank with a part of d adds the elements whose index is in its part of b"},
                  {{"scatter_add", {{{2, 3, 4}}, {{2, 3}, DType::i32}}, scatter_to(1, 5)},
                   {"gather adc,ab->abc sums d"},
                   "a rank with a part of d writes 0 for indices in the parts of others"}},
    .shape_errors =
        {{{"gather", {{{2, 5}}, {{2, 3}}}, gather_along(1)}, "gather: the index is [2, 3] f32, expected i32"},
         {{"gather", {{{2, 5}}, {{3, 3}, DType::i32}}, gather_along(1)},
          "gather: the index is [3, 3] i32; expected the shape of [2, 5], up to dim 1 or with all dims, and "
          "any size in that dim"},
         {{"scatter_add", {{{2, 5}}, {{2, 3}, DType::i32}}, scatter_to(1, 4)},
          "scatter_add: x is [2, 5], expected [2, 3]"}},
    .layers = {{"gather", ", inputs: [looked_up, data], dim: 1", {8, 5, 3}, true},
               {"scatter_add", ", inputs: [looked_up, data], dim: 1, size: 7", {8, 7, 3}, true}},
};

}  // namespace trainctl
