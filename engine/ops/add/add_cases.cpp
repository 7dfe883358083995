#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases add_cases = {
    .rows = {{"add", {{{6, 13}}, {{6, 13}}}, {}, {{6, 13}}},
             {"add", {{{4, 6, 5}}, {{5}}}, {}, {{4, 6, 5}}},
             {"add", {{{4, 1, 6}}, {{2, 1}}}, {}, {{4, 2, 6}}},
             {"add", {{{1}}, {{3, 4, 7}}}, {}, {{3, 4, 7}}},
             {"add", {{{6, 1, 4, 1}}, {{1, 3, 1, 2}}}, {}, {{6, 3, 4, 2}}}},
    .references = {{"add",
                    [](const naive::Inputs& in, const Attrs&) {
                      return naive::map_pairs(in, [](double a, double b) { return a + b; });
                    }}},
    .rules = {{{"add", {{{2, 3}}, {{2, 3}}}}, "ab,ab->ab", "", {{2, 3}}},
              {{"add", {{{2, 3}}, {{3}}}}, "ab,b->ab", "", {{2, 3}}},
              {{"add", {{{2, 1}}, {{1, 3}}}}, "a(),()b->ab", "", {{2, 3}}},
              {{"add", {{{2, 1}}, {{2, 1}}}}, "ab,ab->ab", "", {{2, 1}}}},
    .gradients =
        {{{"add", {{{2, 3}}, {{2, 3}}}}, {"pass in0", "pass in1"}, "dy is the gradient of both"},
         {{"add", {{{2, 3}}, {{3}}}}, {"pass in0", "sum_to ab->b sums a"}, "what was repeated over a is summed over a"},
         {{"add", {{{2, 1}}, {{1, 3}}}}, {"sum_to ab->a() sums b", "sum_to ab->()b sums a"}, "the same, dims kept"}},
    .shape_errors = {{{"add", {{{2, 3}}, {{2, 4}}}},
                      "add: shapes [2, 3] and [2, 4] do not broadcast: 3 and 4 meet at dim 1 from the last"},
                     {{"add", {{{2, 3}}}}, "add takes 2 inputs, but got 1"}},
    .layers = {{"add", ", inputs: [first, second]", {8, 12}}},
};

}  // namespace trainctl
