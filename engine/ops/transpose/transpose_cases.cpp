// Cases of transpose: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs transpose(const Inputs& in, const Attrs& attrs) {
  const Ints perm = attrs.ints("perm");
  Shape shape;
  for (int64_t d : perm) shape.push_back(in[0].shape[d]);
  return {make(shape, [&](const Index& i) {
    Index from(i.size());
    for (size_t d = 0; d < i.size(); ++d) from[perm[d]] = i[d];
    return at(in[0], from);
  })};
}

}  // namespace

extern const OpCases transpose_cases = {
    .rows = {{"transpose", {{{6, 4}}}, {{"perm", Ints{1, 0}}}, {{4, 6}}},
             {"transpose", {{{19, 37}}}, {{"perm", Ints{1, 0}}}, {{37, 19}}},
             {"transpose", {{{2, 3, 4, 5}}}, {{"perm", Ints{0, 2, 1, 3}}}, {{2, 4, 3, 5}}},
             {"transpose", {{{4, 3, 6}}}, {{"perm", Ints{2, 0, 1}}}, {{6, 4, 3}}},
             {"transpose", {{{2, 3, 4, 5}}}, {{"perm", Ints{3, 1, 0, 2}}}, {{5, 3, 2, 4}}},
             {"transpose", {{{2, 3, 4, 5}}}, {{"perm", Ints{0, 1, 2, 3}}}, {{2, 3, 4, 5}}},
             {"transpose", {{{1, 6, 1}}}, {{"perm", Ints{2, 1, 0}}}, {{1, 6, 1}}}},
    .references = {{"transpose", transpose}},
    .rules = {{{"transpose", {{{2, 3, 4}}}, {{"perm", Ints{0, 2, 1}}}}, "abc->acb", "", {{2, 4, 3}}}},
    .gradients = {{{"transpose", {{{2, 3, 4}}}, {{"perm", Ints{2, 0, 1}}}}, {"transpose cab->abc"}, "moves elements"}},
    .shape_errors = {{{"transpose", {{{2, 3}}}, {{"perm", Ints{0, 0}}}},
                      "transpose: perm [0, 0] must contain each of the 2 dims of [2, 3] exactly once"},
                     {{"transpose", {{{2, 3}}}, {{"perm", Ints{0}}}},
                      "transpose: perm [0] must contain each of the 2 dims of [2, 3] exactly once"}},
    .layers = {{"transpose", ", perm: [1, 0]", {12, 8}}},
};

}  // namespace trainctl
