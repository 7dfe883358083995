// Cases of slice: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs slice(const Inputs& in, const Attrs& attrs) {
  const Ints begin = attrs.ints("begin");
  return {make(attrs.ints("size"), [&](Index i) {
    for (size_t d = 0; d < i.size(); ++d) i[d] += begin[d];
    return at(in[0], i);
  })};
}

Outputs pad(const Inputs& in, const Attrs& attrs) {
  const Ints before = attrs.ints("before"), after = attrs.ints("after");
  Shape shape = in[0].shape;
  for (size_t d = 0; d < shape.size(); ++d) shape[d] += before[d] + after[d];
  return {make(shape, [&](Index i) {
    for (size_t d = 0; d < i.size(); ++d) {
      i[d] -= before[d];
      if (i[d] < 0 || i[d] >= in[0].shape[d]) return attrs.number("value");
    }
    return at(in[0], i);
  })};
}

Attrs part(Ints begin, Ints size) { return {{"begin", std::move(begin)}, {"size", std::move(size)}}; }
Attrs around(Ints before, Ints after, double value = 0) {
  return {{"before", std::move(before)}, {"after", std::move(after)}, {"value", value}};
}

}  // namespace

extern const OpCases slice_cases = {
    .rows = {{"slice", {{{6, 12}}}, part({0, 4}, {6, 6}), {{6, 6}}},
             {"slice", {{{6, 12}}}, part({0, 8}, {6, 4}), {{6, 4}}},
             {"slice", {{{4, 7, 5}}}, part({0, 3, 0}, {4, 3, 5}), {{4, 3, 5}}},
             {"slice", {{{4, 6, 5}}}, part({0, 5, 0}, {4, 1, 5}), {{4, 1, 5}}},
             {"slice", {{{6, 6, 4, 3}}}, part({2, 0, 1, 1}, {3, 6, 2, 2}), {{3, 6, 2, 2}}},
             {"slice", {{{3, 5}}}, part({0, 0}, {3, 5}), {{3, 5}}},
             {"slice", {{{13}}}, part({12}, {1}), {{1}}},
             {"slice", {ids({6, 8}, 9)}, part({0, 1}, {6, 6}), {{6, 6}}},
             {"pad", {{{6, 4}}}, around({0, 2}, {0, 6}), {{6, 12}}},
             {"pad", {{{4, 3, 6, 6}}}, around({0, 0, 1, 1}, {0, 0, 1, 1}, -2.5), {{4, 3, 8, 8}}},
             {"pad", {{{2, 6, 5}}}, around({0, 4, 0}, {0, 2, 0}, 0.5), {{2, 12, 5}}},
             {"pad", {{{2, 3, 17}}}, around({1, 0, 0}, {0, 2, 3}, 1), {{3, 5, 20}}},
             {"pad", {{{7}}}, around({0}, {0}), {{7}}}},
    .references = {{"slice", slice}, {"pad", pad}},
    .rules = {{{"slice", {{{2, 5, 4}}}, part({0, 1, 0}, {2, 3, 4})}, "abc->aec", "", {{2, 3, 4}}},
              {{"slice", {{{2, 5}, DType::i32}}, part({0, 1}, {2, 3})}, "ab->ad", "b", {{2, 3}}},
              {{"pad", {{{2, 5, 4}}}, around({0, 1, 0}, {0, 0, 2})}, "abc->aef", "", {{2, 6, 6}}},
              {{"pad", {{{2, 5, 4}}}, around({0, 1, 0}, {0, 0, 2}, 1.0)}, "abc->aef", "bc", {{2, 6, 6}}}},
    .gradients =
        {{{"slice", {{{2, 5, 4}}}, part({0, 1, 0}, {2, 3, 4})},
          {"pad aec->abc sums e"},
          "a rank with a part of e writes the elements that lie in its part of b, and 0 elsewhere"},
         {{"pad", {{{2, 5, 4}}}, around({0, 1, 0}, {0, 0, 2})},
          {"slice aef->abc sums ef"},
          "a rank with a part of e and f writes the elements of its part of b and c that lie there, and 0 elsewhere"}},
    .shape_errors = {{{"slice", {{{2, 3}}}, part({0, 2}, {2, 2})},
                      "slice: begin [0, 2] and size [2, 2] are out of range for [2, 3]"},
                     {{"pad", {{{2, 3}}}, around({1}, {0})},
                      "pad: before [1] and after [0] must be numbers of elements for each dim of [2, 3]"}},
    .layers = {{"slice", ", dim: 1, begin: 2, end: -3", {8, 7}},
               {"slice", ", dim: -1, begin: -4", {8, 4}},
               {"pad", ", dims: [-1], before: [3], after: [1], value: 0.5", {8, 16}},
               {"pad", ", dims: [1], after: [2]", {8, 14}},
               {"pad", ", dims: [-1], before: [3], after: [4], mode: reflect", {8, 19}},
               {"pad", ", dims: [1, 2], before: [1, 0], after: [2, 1], mode: circular", {8, 6, 5}, false, {3, 4}}},
};

}  // namespace trainctl
