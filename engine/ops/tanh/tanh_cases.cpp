// Cases of tanh: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases tanh_cases = {
    .rows = {{"tanh", {{{1}}}, {}, {{1}}},
             {"tanh", {{{6, 7}}}, {}, {{6, 7}}},
             {"tanh", {{{4, 3, 31}}}, {}, {{4, 3, 31}}}},
    .references = {{"tanh", [](const naive::Inputs& in,
                               const Attrs&) { return naive::map(in, [](double x) { return std::tanh(x); }); }}},
    .rules = {{{"tanh", {{{2}}}}, "a->a", "", {{2}}}},
    .gradients = {{{"tanh", {{{2, 3}}}}, {"tanh_grad ab,ab->ab"}, "element by element"}},
    .layers = {{"tanh", "", {8, 12}}},
};

}  // namespace trainctl
