// Cases of cumsum: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs cumsum(const Inputs& in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  return {make(in[0].shape, [&](const Index& i) {
    double sum = 0;
    Index other = i;
    for (int64_t k = 0; k < in[0].shape[dim]; ++k) {
      other[dim] = k;
      if (attrs.flag("reverse") ? k >= i[dim] : k <= i[dim]) sum += at(in[0], other);
    }
    return sum;
  })};
}

Attrs along_dim(int64_t dim, bool reverse = false) { return {{"dim", dim}, {"reverse", reverse}}; }

}  // namespace

extern const OpCases cumsum_cases = {
    .rows = {{"cumsum", {{{6, 7}}}, along_dim(1), {{6, 7}}},
             {"cumsum", {{{4, 67}}}, along_dim(1, true), {{4, 67}}},
             {"cumsum", {{{6, 5, 4}}}, along_dim(1), {{6, 5, 4}}},
             {"cumsum", {{{2, 3, 6, 37}}}, along_dim(1, true), {{2, 3, 6, 37}}},
             {"cumsum", {{{5, 3}}}, along_dim(0), {{5, 3}}}},
    .references = {{"cumsum", cumsum}},
    .rules = {{{"cumsum", {{{2, 3, 4}}}, along_dim(1)}, "abc->abc", "b", {{2, 3, 4}}}},
    .gradients = {{{"cumsum", {{{2, 3}}}, along_dim(1)},
                   {"cumsum ab->ab"},
                   "each row is independent of the others; b is uncuttable",
                   "b"}},
    .shape_errors = {{{"cumsum", {{{2, 3}}}, along_dim(2)}, "cumsum: there is no dim 2 in [2, 3]"}},
    .layers = {{"cumsum", ", dim: -1", {8, 12}}, {"cumsum", ", dim: 1, reverse: true", {8, 4, 3}, false, {4, 3}}},
};

}  // namespace trainctl
