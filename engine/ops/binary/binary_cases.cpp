// Cases of binary: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using Pair = double (*)(double, double);

template <Pair kF>
naive::Outputs reference_of_pairs(const naive::Inputs& in, const Attrs&) {
  return naive::map_pairs(in, kF);
}

/// Cases with several shapes of both inputs and of the result. Divisors are not near 0.
std::vector<OpCase> binary_rows() {
  struct Sizes {
    Shape a, b, out;
  };
  std::vector<OpCase> binary_rows;
  for (const char* op : {"add", "sub", "mul", "div", "maximum", "minimum"}) {
    for (const Sizes& s : {Sizes{{6, 13}, {6, 13}, {6, 13}},
                           {{2, 3, 5}, {5}, {2, 3, 5}},
                           {{4, 1, 6}, {2, 1}, {4, 2, 6}},
                           {{1}, {3, 4, 7}, {3, 4, 7}},
                           {{6, 1, 4, 1}, {1, 3, 1, 2}, {6, 3, 4, 2}}}) {
      const bool divides = std::string(op) == "div";
      binary_rows.push_back({op, {CaseInput{s.a}, divides ? positive(s.b) : CaseInput{s.b}}, {}, {s.out}});
    }
  }
  return binary_rows;
}

}  // namespace

extern const OpCases binary_cases = {
    .rows = binary_rows(),
    .references = {{"add", reference_of_pairs<[](double a, double b) { return a + b; }>},
                   {"sub", reference_of_pairs<[](double a, double b) { return a - b; }>},
                   {"mul", reference_of_pairs<[](double a, double b) { return a * b; }>},
                   {"div", reference_of_pairs<[](double a, double b) { return a / b; }>},
                   {"maximum", reference_of_pairs<[](double a, double b) { return std::max(a, b); }>},
                   {"minimum", reference_of_pairs<[](double a, double b) { return std::min(a, b); }>}},
    .rules = {{{"add", {{{2, 3}}, {{2, 3}}}}, "ab,ab->ab", "", {{2, 3}}},
              {{"add", {{{2, 3}}, {{3}}}}, "ab,b->ab", "", {{2, 3}}},
              {{"add", {{{2, 1}}, {{1, 3}}}}, "a(),()b->ab", "", {{2, 3}}},
              {{"add", {{{2, 1}}, {{2, 1}}}}, "ab,ab->ab", "", {{2, 1}}},
              {{"sub", {{{2, 3}}, {{3}}}}, "ab,b->ab", "", {{2, 3}}},
              {{"mul", {{{3}}, {{2, 3}}}}, "b,ab->ab", "", {{2, 3}}},
              {{"div", {{{3}}, {{2, 3}}}}, "b,ab->ab", "", {{2, 3}}},
              {{"maximum", {{{3}}, {{2, 3}}}}, "b,ab->ab", "", {{2, 3}}},
              {{"minimum", {{{3}}, {{2, 3}}}}, "b,ab->ab", "", {{2, 3}}}},
    .gradients = {{{"add", {{{2, 3}}, {{2, 3}}}}, {"pass in0", "pass in1"}, "the gradient of both inputs is dy"},
                  {{"add", {{{2, 3}}, {{3}}}},
                   {"pass in0", "sum_to ab->b sums a"},
                   "the gradient of an input that was repeated over a sums over a"},
                  {{"add", {{{2, 1}}, {{1, 3}}}},
                   {"sum_to ab->a() sums b", "sum_to ab->()b sums a"},
                   "the same, with dims kept"},
                  {{"sub", {{{2, 3}}, {{2, 3}}}}, {"pass in0", "scale ab->ab"}, "dy and -dy"},
                  {{"sub", {{{2, 3}}, {{3}}}},
                   {"pass in0", "scale ab->ab", "sum_to ab->b sums a"},
                   "-dy, summed over a"},
                  {{"mul", {{{2, 3}}, {{2, 3}}}}, {"mul ab,ab->ab", "mul ab,ab->ab"}, "element by element"},
                  {{"mul", {{{2, 3}}, {{3}}}},
                   {"mul ab,b->ab", "mul ab,ab->ab", "sum_to ab->b sums a"},
                   "db[b] = sum over a of dy * x; the product itself is whole"},
                  {{"div", {{{2, 3}}, {{3}}}},
                   {"div ab,b->ab", "mul ab,ab->ab", "scale ab->ab", "sum_to ab->b sums a"},
                   "db[b] = sum over a of -dy / b * y; the products are whole"},
                  {{"maximum", {{{2, 3}}, {{3}}}},
                   {"larger ab,b->ab", "mul ab,ab->ab", "larger b,ab->ab", "mul ab,ab->ab", "sum_to ab->b sums a"},
                   "da = dy where a > b; db = dy where b > a, summed over a"},
                  {{"minimum", {{{2, 3}}, {{2, 3}}}},
                   {"larger ab,ab->ab", "mul ab,ab->ab", "larger ab,ab->ab", "mul ab,ab->ab"},
                   "da = dy where b > a; db = dy where a > b"}},
    .shape_errors = {{{"add", {{{2, 3}}, {{2, 4}}}},
                      "add: shapes [2, 3] and [2, 4] cannot be broadcast: 3 and 4 differ in dim 1 from the last"},
                     {{"add", {{{2, 3}}}}, "add takes 2 inputs, but got 1"},
                     {{"mul", {{{2, 3}}, {{3, 3}}}},
                      "mul: shapes [2, 3] and [3, 3] cannot be broadcast: 2 and 3 differ in dim 2 from the last"}},
    .layers = {{"add", ", inputs: [first, second]", {8, 12}},
               {"sub", ", inputs: [first, second]", {8, 12}},
               {"mul", ", inputs: [first, second]", {8, 12}},
               {"div", ", inputs: [first, second]", {8, 12}},
               {"maximum", ", inputs: [first, second]", {8, 12}},
               {"minimum", ", inputs: [first, second]", {8, 12}}},
};

}  // namespace trainctl
