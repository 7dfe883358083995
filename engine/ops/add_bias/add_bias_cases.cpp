#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs add(const Inputs& in, const Attrs&) {
  return map_pairs(in, [](double x, double b) { return x + b; });
}

/// A gradient step on a bias: -= learning rate * dy summed over all leading dims.
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
             {"add_bias", {{{1, 1}}, {{1}}}, {}, {{1, 1}}}},
    .references = {{"add_bias", add}},
    .rules = {{{"add_bias", {{{5, 2, 3}}, {{3}}}}, "abn,n->abn", "", {{5, 2, 3}}}},
    .gradients = {{{"add_bias", {{{5, 2, 3}}, {{3}}}},
                   {"pass in0", "bias_grad abn->n sums ab"},
                   "b is added in every row"}},
    .shape_errors = {{{"add_bias", {{{2, 3}}, {{4}}}}, "add_bias: the bias is [4], expected [3]"}},
    .kernels = {{"bias_grad",
                 {{{24, 20}}},
                 {{.shape = {20}, .accumulate = true}},
                 {{"descend", true}},
                 1e-5,
                 {.learning_rate = 0.25f}}},
    .kernel_references = {{"bias_grad", step_of_bias}},
};

}  // namespace trainctl
