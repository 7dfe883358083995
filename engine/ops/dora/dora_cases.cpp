// Cases of dora: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs dora_squares(const Inputs& in, const Attrs& attrs) {
  const double factor = attrs.number("factor", 1.0);
  const int64_t columns = in[0].shape[1], rank = in[1].shape[0];
  return {make({in[0].shape[0]}, [&](const Index& i) {
    double sum = 0;
    for (int64_t k = 0; k < columns; ++k) {
      double v = at(in[0], {i[0], k});
      for (int64_t r = 0; r < rank; ++r) v += factor * at(in[2], {i[0], r}) * at(in[1], {r, k});
      sum += v * v;
    }
    return sum;
  })};
}

Outputs dora_scale(const Inputs& in, const Attrs&) {
  return map_all(in, [](const std::vector<double>& v) { return v[0] / std::sqrt(v[1]); });
}

Attrs dora_factor(double factor) { return {{"factor", factor}}; }

CaseInput positive_squares(Shape shape) {
  return {.shape = std::move(shape), .differentiable = false, .positive = true};
}

}  // namespace

extern const OpCases dora_cases = {
    .rows = {{"dora_squares", {fixed({6, 12}), fixed({3, 12}), fixed({6, 3})}, dora_factor(0.5), {{6}}},
             {"dora_squares", {fixed({5, 37}), fixed({1, 37}), fixed({5, 1})}, dora_factor(2), {{5}}},
             {"dora_squares", {fixed({12, 600}), fixed({70, 600}), fixed({12, 70})}, dora_factor(0.1), {{12}}, 1e-5},
             {"dora_scale", {{{12}}, positive_squares({12})}, {}, {{12}}},
             {"dora_scale", {{{7}}, positive_squares({7})}, {}, {{7}}}},
    .references = {{"dora_squares", dora_squares}, {"dora_scale", dora_scale}},
    .rules = {{{"dora_squares", {{{4, 6}}, {{2, 6}}, {{4, 2}}}}, "nk,rk,nr->n", "r", {{4}}},
              {{"dora_scale", {{{4}}, {{4}}}}, "a,a->a", "", {{4}}}},
    .gradients = {{{"dora_scale", {{{4}}, {{4}}}}, {"dora_scale a,a->a"}, "element by element: it is linear in m"}},
    .shape_errors = {{{"dora_squares", {{{4, 6}}, {{2, 5}}, {{4, 2}}}}, "dora_squares: A is [2, 5], expected [2, 6]"},
                     {{"dora_squares", {{{4, 6}}, {{2, 6}}, {{4, 3}}}}, "dora_squares: B is [4, 3], expected [4, 2]"},
                     {{"dora_scale", {{{4}}, {{3}}}}, "dora_scale: the squares is [3], expected [4]"}},
    .layers = {{"dora", ", layer: square, a: square, b: square, bias: false", {8, 12}}},
};

}  // namespace trainctl
