// Cases of contrastive: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs row_index(const Inputs& in, const Attrs&) {
  return {make(in[0].shape, [](const Index& i) { return static_cast<double>(i[0]); })};
}

}  // namespace

extern const OpCases contrastive_cases = {
    .rows = {{"row_index", {fixed({12})}, {}, {{12}}}, {"row_index", {fixed({7})}, {}, {{7}}}},
    .references = {{"row_index", row_index}},
    .rules = {{{"row_index", {{{6}}}}, "a->a", "", {{6}}}},
    .shape_errors = {{{"row_index", {{{2, 3}}}}, "row_index expects [n], but got [2, 3]"}},
};

}  // namespace trainctl
