#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

double loss(double d) { return d * d; }
double slope(double d) { return 2 * d; }

Attrs scale(double s) { return {{"scale", s}}; }

std::vector<KernelCase> kernels() {
  std::vector<KernelCase> calls;
  for (const int64_t n : {1, 7, 37, 4096, 70001}) {
    const CaseOperand x{{n}}, bf16{.shape = {n}, .dtype = DType::bf16};
    const CaseOperand sum{.shape = {1}, .fill = CaseOperand::Fill::number, .accumulate = true, .number = 0.5};
    calls.push_back({"mse_with_grad", {x, x}, {unwritten({1}), unwritten({n})}, scale(0.01), 2e-6});
    calls.push_back({"mse_with_grad", {x, x}, {sum, unwritten({n})}, scale(0.01), 2e-6});
    calls.push_back({"mse_with_grad", {bf16, x}, {unwritten({1}), unwritten({n}, DType::bf16)}, scale(0.01), 1e-2});
    calls.back().f32_on_cpu = true;
  }
  return calls;
}

}  // namespace

extern const OpCases mse_cases = {
    .rows = {{"mse", {{{6, 1}}, fixed({6, 1})}, scale(1.0 / 6), {{1}}},
             {"mse", {{{4, 3, 7}}, fixed({4, 3, 7})}, scale(0.01), {{1}}},
             {"mse", {{{1, 1}}, fixed({1, 1})}, scale(1.0), {{1}}}},
    .references = {{"mse", [](const naive::Inputs& in,
                              const Attrs& attrs) { return naive::sum_of_differences(in, attrs, loss); }}},
    .rules = {{{"mse", {{{2, 3}}, {{2, 3}}}}, "ab,ab->()", "", {{1}}}},
    .gradients = {{{"mse", {{{2, 3}}, {{2, 3}}}},
                   {"mse_grad ab,ab->ab"},
                   "element by element; the scale is of the whole batch"}},
    .shape_errors = {{{"mse", {{{2, 3}}, {{2}}}}, "mse: input 1 is [2], expected [2, 3]"}},
    .kernels = kernels(),
    .kernel_references = {{"mse_with_grad",
                           [](const NaiveCall& call) {
                             return naive::sum_with_slopes(call.in, call.attrs, loss, slope);
                           }}},
};

}  // namespace trainctl
