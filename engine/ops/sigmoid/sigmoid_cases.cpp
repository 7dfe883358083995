// Cases of sigmoid: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases sigmoid_cases = {
    .rows = {{"sigmoid", {{{1}}}, {}, {{1}}},
             {"sigmoid", {{{6, 7}}}, {}, {{6, 7}}},
             {"sigmoid", {{{4, 3, 31}}}, {}, {{4, 3, 31}}}},
    .references = {{"sigmoid",
                    [](const naive::Inputs& in, const Attrs&) {
                      return naive::map(in, [](double x) { return 1 / (1 + std::exp(-x)); });
                    }}},
    .rules = {{{"sigmoid", {{{2, 3}}}}, "ab->ab", "", {{2, 3}}}},
    .gradients = {{{"sigmoid", {{{2, 3}}}}, {"sigmoid_grad ab,ab->ab"}, "element by element"}},
    .layers = {{"sigmoid", "", {8, 12}}},
};

}  // namespace trainctl
