// Cases of relu: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases relu_cases = {
    .rows = {{"relu", {{{1}}}, {}, {{1}}},
             {"relu", {{{6, 7}}}, {}, {{6, 7}}},
             {"relu", {{{4, 3, 31}}}, {}, {{4, 3, 31}}}},
    .references = {{"relu", [](const naive::Inputs& in,
                               const Attrs&) { return naive::map(in, [](double x) { return x > 0 ? x : 0; }); }}},
    .rules = {{{"relu", {{{2, 3}}}}, "ab->ab", "", {{2, 3}}}},
    .gradients = {{{"relu", {{{2, 3}}}}, {"relu_grad ab,ab->ab"}, "element by element"}},
    .shape_errors = {{{"relu", {{{2}, DType::i32}}}, "relu expects f32, but got [2] i32"}},
    .layers = {{"relu", "", {8, 12}}},
};

}  // namespace trainctl
