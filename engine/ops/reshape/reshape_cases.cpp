// Cases of reshape: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases reshape_cases = {
    .rows = {{"reshape", {{{4, 3, 5}}}, {{"shape", Shape{4, 15}}}, {{4, 15}}},
             {"reshape", {{{6, 12}}}, {{"shape", Shape{6, 3, 4}}}, {{6, 3, 4}}},
             {"reshape", {{{7, 1}}}, {{"shape", Shape{1, 7}}}, {{1, 7}}},
             {"reshape", {{{6, 4}}}, {{"shape", Shape{8, 3}}}, {{8, 3}}}},
    .references = {{"reshape",
                    [](const naive::Inputs& in, const Attrs& attrs) {
                      return naive::Outputs{{attrs.ints("shape"), in[0].values}};
                    }}},
    // Digits of a reshape: a cut of a dim is a cut of its first digit.
    .rules = {{{"reshape", {{{2, 3, 4}}}, {{"shape", Ints{2, 12}}}}, "abc->a(bc)", "c", {{2, 12}}},
              {{"reshape", {{{2, 12}}}, {{"shape", Ints{2, 3, 4}}}}, "a(bc)->abc", "c", {{2, 3, 4}}},
              {{"reshape", {{{4, 6}}}, {{"shape", Ints{2, 12}}}}, "(ab)c->a(bc)", "bc", {{2, 12}}},
              {{"reshape", {{{5, 6, 4}}}, {{"shape", Ints{5, 8, 3}}}}, "abc->ade", "bcde", {{5, 8, 3}}},
              {{"reshape", {{{2, 1, 3}}}, {{"shape", Ints{2, 3, 1}}}}, "a()b->ab()", "", {{2, 3, 1}}},
              {{"reshape", {{{1, 6}}}, {{"shape", Ints{6}}}}, "()a->a", "", {{6}}},
              {{"reshape", {{{6}}}, {{"shape", Ints{6}}}}, "a->a", "", {{6}}},
              {{"reshape", {{{6, 5}}}, {{"shape", Ints{30}}}}, "ab->(ab)", "b", {{30}}}},
    .gradients =
        {{{"reshape", {{{2, 3, 4}}}, {{"shape", Ints{2, 12}}}},
          {"reshape a(bc)->abc"},
          "it moves elements; a and b are the major factors of their dims on both sides, so a block stays one block"}},
    .shape_errors = {{{"reshape", {{{2, 3}}}, {{"shape", Ints{4}}}}, "reshape: [2, 3] has 6 elements, [4] has 4"}},
    .layers = {{"flatten", "", {8, 12}},
               {"reshape", ", shape: [3, -1]", {8, 3, 4}},
               {"reshape", ", shape: [2, 2, 3]", {8, 2, 2, 3}},
               {"unsqueeze", ", dim: 1", {8, 1, 12}},
               {"unsqueeze", ", dim: -1", {8, 12, 1}},
               {"squeeze", ", dim: -2, inputs: [one]", {8, 12}}},
};

}  // namespace trainctl
