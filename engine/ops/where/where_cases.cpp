// Cases of where: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

/// A condition that holds for some elements and not for others: a third of them are 0.
CaseInput mask(Shape shape) { return {.shape = std::move(shape), .differentiable = false, .zeros = true}; }

naive::Outputs where(const naive::Inputs& in, const Attrs&) {
  return naive::map_all(in, [](const std::vector<double>& v) { return v[0] != 0 ? v[1] : v[2]; });
}

naive::Outputs masked_fill(const naive::Inputs& in, const Attrs& attrs) {
  const bool invert = attrs.flag("invert");
  return naive::map_all(in, [&](const std::vector<double>& v) {
    const bool fills = invert ? v[1] == 0 : v[1] != 0;
    return fills ? attrs.number("value", 0) : v[0];
  });
}

}  // namespace

extern const OpCases where_cases = {
    .rows = {{"where", {mask({6, 13}), {{6, 13}}, {{6, 13}}}, {}, {{6, 13}}},
             {"where", {mask({1}), {{1}}, {{1}}}, {}, {{1}}},
             {"where", {mask({8, 1}), {{8, 12}}, {{12}}}, {}, {{8, 12}}},
             {"where", {mask({12}), {{4, 1, 12}}, {{3, 1}}}, {}, {{4, 3, 12}}},
             {"where", {mask({4, 3, 31}), {{1}}, {{4, 3, 31}}}, {}, {{4, 3, 31}}},
             {"masked_fill", {{{6, 13}}, mask({6, 13})}, {{"value", -2.5}}, {{6, 13}}},
             {"masked_fill", {{{1}}, mask({1})}, {{"value", 1.0}}, {{1}}},
             {"masked_fill", {{{4, 3, 31}}, mask({31})}, {{"value", 0.5}, {"invert", true}}, {{4, 3, 31}}},
             {"masked_fill", {{{12}}, mask({4, 3, 1})}, {{"value", 1e4}}, {{4, 3, 12}}}},
    .references = {{"where", where}, {"masked_fill", masked_fill}},
    .rules = {{{"where", {{{2, 1}}, {{2, 3}}, {{3}}}}, "a(),ab,b->ab", "", {{2, 3}}},
              {{"masked_fill", {{{2, 3}}, {{3}}}}, "ab,b->ab", "", {{2, 3}}}},
    .gradients = {{{"where", {{{2, 3}}, {{2, 3}}, {{3}}}},
                   {"masked_fill ab,ab->ab", "masked_fill ab,ab->ab", "sum_to ab->b sums a"},
                   "dy where the input was chosen; the gradient of an input that was repeated over a sums over a"},
                  {{"masked_fill", {{{2, 3}}, {{3}}}}, {"masked_fill ab,b->ab"}, "element by element"}},
    .shape_errors = {{{"where", {{{2, 3}}, {{2, 3}}}}, "where takes 3 inputs, but got 2"},
                     {{"where", {{{2, 3}}, {{2, 3}}, {{2}}}},
                      "where: shapes [2, 3] and [2] cannot be broadcast: 3 and 2 differ in dim 1 from the last"},
                     {{"masked_fill", {{{2, 3}}, {{2, 3}, DType::i32}}},
                      "masked_fill expects f32, but got [2, 3] i32"}},
    .layers = {{"where", ", inputs: [second, first, second]", {8, 12}},
               {"masked_fill", ", inputs: [first, second], value: 0", {8, 12}}},
};

}  // namespace trainctl
