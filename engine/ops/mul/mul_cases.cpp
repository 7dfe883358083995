#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases mul_cases = {
    .rows = {{"mul", {{{6, 13}}, {{6, 13}}}, {}, {{6, 13}}},
             {"mul", {{{4, 6, 5}}, {{5}}}, {}, {{4, 6, 5}}},
             {"mul", {{{4, 1, 6}}, {{2, 1}}}, {}, {{4, 2, 6}}},
             {"mul", {{{1}}, {{3, 4, 7}}}, {}, {{3, 4, 7}}},
             {"mul", {{{6, 1, 4, 1}}, {{1, 3, 1, 2}}}, {}, {{6, 3, 4, 2}}}},
    .references = {{"mul",
                    [](const naive::Inputs& in, const Attrs&) {
                      return naive::map_pairs(in, [](double a, double b) { return a * b; });
                    }}},
    .rules = {{{"mul", {{{3}}, {{2, 3}}}}, "b,ab->ab", "", {{2, 3}}}},
    .gradients = {{{"mul", {{{2, 3}}, {{2, 3}}}}, {"mul ab,ab->ab", "mul ab,ab->ab"}, "element by element"},
                  {{"mul", {{{2, 3}}, {{3}}}},
                   {"mul ab,b->ab", "mul ab,ab->ab", "sum_to ab->b sums a"},
                   "db[b] = sum over a of dy * x; the product itself is whole"}},
    .shape_errors = {{{"mul", {{{2, 3}}, {{3, 3}}}},
                      "mul: shapes [2, 3] and [3, 3] do not broadcast: 2 and 3 meet at dim 2 from the last"}},
    .layers = {{"mul", ", inputs: [first, second]", {8, 12}}},
};

}  // namespace trainctl
