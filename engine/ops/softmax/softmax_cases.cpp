#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs softmax(const Inputs& in, const Attrs& attrs) {
  const int64_t dim = attrs.integer("dim");
  return {make(in[0].shape, [&](const Index& i) {
    double sum = 0;
    Index j = i;
    for (j[dim] = 0; j[dim] < in[0].shape[dim]; ++j[dim]) sum += std::exp(at(in[0], j) - at(in[0], i));
    return 1.0 / sum;
  })};
}

Attrs dim(int64_t d) { return {{"dim", d}}; }

}  // namespace

extern const OpCases softmax_cases = {
    .rows = {{"softmax", {{{6, 7}}}, dim(1), {{6, 7}}},
             {"softmax", {{{4, 5, 6}}}, dim(1), {{4, 5, 6}}},
             {"softmax", {{{3, 71}}}, dim(0), {{3, 71}}},
             {"softmax", {{{4, 37}}}, dim(1), {{4, 37}}},
             {"softmax", {{{4, 1}}}, dim(1), {{4, 1}}}},
    .references = {{"softmax", softmax}},
    .rules = {{{"softmax", {{{2, 3, 4}}}, dim(1)}, "abc->abc", "b", {{2, 3, 4}}}},
    .gradients = {{{"softmax", {{{2, 3}}}, dim(1)},
                   {"softmax_grad ab,ab->ab"},
                   "the sum over b inside needs the whole row: b is uncuttable"}},
    .shape_errors = {{{"softmax", {{{2, 3}}}, dim(2)}, "softmax: there is no dim 2 in [2, 3]"}},
    .layers = {{"softmax", "", {8, 12}}, {"softmax", ", dim: 0", {8, 12}}},
};

}  // namespace trainctl
