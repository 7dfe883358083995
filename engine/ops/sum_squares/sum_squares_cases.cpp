// Cases of sum_squares: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

std::vector<KernelCase> sum_squares_kernels() {
  std::vector<KernelCase> calls;
  for (const int64_t n : {1, 7, 37, 4096, 70001}) {
    const CaseOperand bf16{.shape = {n}, .dtype = DType::bf16};
    const CaseOperand sum{.shape = {1}, .fill = CaseOperand::Fill::number, .accumulate = true, .number = 0.5};
    calls.push_back({"sum_squares", {{{n}}}, {unwritten({1})}, {}, 1e-6});
    calls.push_back({"sum_squares", {bf16}, {sum}, {}, 1e-6});
    calls.back().f32_on_cpu = true;
  }
  for (const double x : {0.0, 3.0, 1e30}) {
    const CaseOperand number{.shape = {1}, .fill = CaseOperand::Fill::number, .number = x};
    calls.push_back({"count_not_finite", {number}, {unwritten({1})}, {}, 0});
  }
  const CaseOperand infinite{.shape = {1}, .fill = CaseOperand::Fill::number, .number = INFINITY};
  calls.push_back({"count_not_finite", {infinite}, {unwritten({1})}, {}, 0});
  return calls;
}

}  // namespace

extern const OpCases sum_squares_cases = {
    .kernels = sum_squares_kernels(),
    .kernel_references = {{"sum_squares",
                           [](const NaiveCall& call) {
                             double sum = 0;
                             for (const double x : call.in[0].values) sum += x * x;
                             return naive::Outputs{{{1}, {sum}}};
                           }},
                          {"count_not_finite",
                           [](const NaiveCall& call) {
                             return naive::Outputs{{{1}, {std::isfinite(call.in[0].values[0]) ? 0.0 : 1.0}}};
                           }}},
};

}  // namespace trainctl
