// Cases of reindex: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// Computes each element of y from its source in x, as the mode defines it.
Outputs reindex(const Inputs& in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  const std::string mode = attrs.text("mode");
  const int64_t n = in[0].shape[dim], before = attrs.integer("before");
  Shape shape = in[0].shape;
  shape[dim] += before + attrs.integer("after");
  return {make(shape, [&](Index i) {
    int64_t at = i[dim] - before;
    if (mode == "circular")
      at = (at % n + n) % n;
    else if (mode == "replicate")
      at = std::min(std::max<int64_t>(at, 0), n - 1);
    else
      at = at < 0 ? -at : at >= n ? 2 * (n - 1) - at : at;
    i[dim] = at;
    return naive::at(in[0], i);
  })};
}

Attrs moved_along(int64_t dim, int64_t before, int64_t after, const char* mode) {
  return {{"dim", dim}, {"before", before}, {"after", after}, {"mode", std::string(mode)}};
}

}  // namespace

extern const OpCases reindex_cases = {
    .rows = {{"reindex", {{{6, 12}}}, moved_along(1, 4, -4, "circular"), {{6, 12}}},
             {"reindex", {{{6, 4, 3}}}, moved_along(1, 4, 4, "circular"), {{6, 12, 3}}},
             {"reindex", {{{2, 5}}}, moved_along(0, 1, 1, "circular"), {{4, 5}}},
             {"reindex", {{{6, 6}}}, moved_along(1, 4, 2, "reflect"), {{6, 12}}},
             {"reindex", {{{2, 3, 6, 5}}}, moved_along(2, 2, 4, "reflect"), {{2, 3, 12, 5}}},
             {"reindex", {{{6, 6}}}, moved_along(1, 4, 2, "replicate"), {{6, 12}}},
             {"reindex", {{{4, 1, 7}}}, moved_along(1, 2, 3, "replicate"), {{4, 6, 7}}},
             {"reindex", {{{2, 3, 4, 37}}}, moved_along(3, 0, 1, "replicate"), {{2, 3, 4, 38}}}},
    .references = {{"reindex", reindex}},
    .rules = {{{"reindex", {{{2, 5, 4}}}, moved_along(1, 2, 1, "circular")}, "abc->adc", "", {{2, 8, 4}}}},
    .gradients = {{{"reindex", {{{2, 5, 4}}}, moved_along(1, 2, 1, "circular")},
                   {"reindex_grad adc->abc sums d"},
                   "a rank with a part of d adds the elements that came from its part of b"}},
    .shape_errors = {{{"reindex", {{{2, 3}}}, moved_along(2, 1, 1, "circular")},
                      "reindex: there is no dim 2 in [2, 3]"},
                     {{"reindex", {{{2, 3}}}, moved_along(1, -1, -2, "circular")},
                      "reindex: nothing is left of dim 1 of [2, 3] with before -1 and after -2"}},
    .layers = {{"roll", ", shift: 5, dim: 1", {8, 12}}, {"roll", ", shift: -1, dim: -1", {8, 4, 3}, false, {4, 3}}},
};

}  // namespace trainctl
