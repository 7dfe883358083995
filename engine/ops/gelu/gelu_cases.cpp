// Cases of gelu: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases gelu_cases = {
    .rows = {{"gelu", {{{1}}}, {}, {{1}}},
             {"gelu", {{{6, 7}}}, {}, {{6, 7}}},
             {"gelu", {{{4, 3, 31}}}, {}, {{4, 3, 31}}},
             {"gelu", {{{6, 17}}}, {{"approximate", std::string("tanh")}}, {{6, 17}}}},
    .references = {{"gelu",
                    [](const naive::Inputs& in, const Attrs& attrs) {
                      return naive::map(in, [&](double x) { return naive::activated(gelu_of(attrs), x); });
                    }}},
    .rules = {{{"gelu", {{{2, 3}}}}, "ab->ab", "", {{2, 3}}}},
    .gradients = {{{"gelu", {{{2, 3}}}}, {"gelu_grad ab,ab->ab"}, "element by element"}},
    .layers = {{"gelu", ", approximate: tanh", {8, 12}}},
};

}  // namespace trainctl
