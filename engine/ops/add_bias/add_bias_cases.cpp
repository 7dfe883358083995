// Cases of add_bias: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs add(const Inputs& in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim", static_cast<int64_t>(in[0].shape.size()) - 1));
  return {make(in[0].shape, [&](const Index& i) { return at(in[0], i) + at(in[1], {i[dim]}); })};
}

/// A gradient step: the bias is decreased by the learning rate times dy summed over all leading dims.
Outputs step_of_bias(const NaiveCall& call) {
  const Tensor64& dy = call.in[0];
  const int64_t n = dy.shape.back();
  Tensor64 step = zeros({n});
  for (size_t i = 0; i < dy.values.size(); ++i)
    step.values[i % static_cast<size_t>(n)] -= double{call.scalars.learning_rate} * dy.values[i];
  return {step};
}

}  // namespace

extern const OpCases add_bias_cases = {
    .rows = {{"add_bias", {{{6, 11}}, {{11}}}, {}, {{6, 11}}},
             {"add_bias", {{{4, 3, 12}}, {{12}}}, {}, {{4, 3, 12}}},
             {"add_bias", {{{1, 1}}, {{1}}}, {}, {{1, 1}}},
             {"add_bias", {{{4, 6, 3, 5}}, {{6}}}, {{"dim", int64_t{1}}}, {{4, 6, 3, 5}}},
             {"add_bias", {{{3, 7, 1, 1}}, {{7}}}, {{"dim", int64_t{1}}}, {{3, 7, 1, 1}}},
             {"add_bias", {{{2, 3, 17}}, {{2}}}, {{"dim", int64_t{0}}}, {{2, 3, 17}}}},
    .references = {{"add_bias", add}},
    .rules = {{{"add_bias", {{{5, 2, 3}}, {{3}}}}, "abn,n->abn", "", {{5, 2, 3}}},
              {{"add_bias", {{{5, 2, 3, 4}}, {{2}}}, {{"dim", int64_t{1}}}}, "anbc,n->anbc", "", {{5, 2, 3, 4}}}},
    .gradients = {{{"add_bias", {{{5, 2, 3}}, {{3}}}},
                   {"pass in0", "bias_grad abn->n sums ab"},
                   "b is added in every row"},
                  {{"add_bias", {{{5, 2, 3, 4}}, {{2}}}, {{"dim", int64_t{1}}}},
                   {"pass in0", "bias_grad anbc->n sums abc"},
                   "b is added to every pixel"}},
    .shape_errors = {{{"add_bias", {{{2, 3}}, {{4}}}}, "add_bias: the bias is [4], expected [3]"},
                     {{"add_bias", {{{2, 3, 5, 6}}, {{5}}}, {{"dim", int64_t{1}}}},
                      "add_bias: the bias is [5], expected [3]"}},
    .kernels = {{"bias_grad",
                 {{{24, 20}}},
                 {{.shape = {20}, .accumulate = true}},
                 {{"descend", true}},
                 1e-5,
                 {.learning_rate = 0.25f}}},
    .kernel_references = {{"bias_grad", step_of_bias}},
};

}  // namespace trainctl
