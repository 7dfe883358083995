// Cases of amax and update_fp8_scale: their kernels as naive loops.
#include <algorithm>
#include <cmath>

#include "engine/ops/quantise/tensor_scale.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using naive::Outputs;

double largest_magnitude(const Tensor64& x) {
  double most = 0;
  for (const double v : x.values) most = std::max(most, std::fabs(v));
  return most;
}

/// The expected result is what must be added to the previous value so that the sum is the larger of the two.
Outputs amax(const NaiveCall& call) {
  const double most = largest_magnitude(call.in[0]), before = call.before[0].values[0];
  return {{{1}, {std::isnan(before) ? most : std::max(most, before) - before}}};
}

Outputs update_fp8_scale(const NaiveCall& call) {
  Tensor64 state = call.in[0];
  std::vector<double>& v = state.values;
  const double amax = call.in.size() > 1 ? largest_magnitude(call.in[1]) : std::fabs(v[kAmaxPlace]);
  v.insert(v.begin() + kHistoryPlace, amax);
  v.pop_back();
  const double most = call.attrs.flag("most_recent") ? amax : *std::max_element(v.begin() + kHistoryPlace, v.end());
  const double largest = call.attrs.flag("e5m2") ? 57344 : 448;
  if (most > 0) v[kScalePlace] = std::ldexp(largest / most, static_cast<int>(-call.attrs.integer("margin")));
  v[kAmaxPlace] = 0;
  return {state};
}

std::vector<KernelCase> fp8_scale_kernels() {
  std::vector<KernelCase> calls;
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const Shape& x : {Shape{1}, Shape{3, 5, 7}, Shape{144, 272}, Shape{40001}}) {
      KernelCase call{.kernel = "amax", .in = {CaseOperand{.shape = x, .dtype = type}}, .out = {unwritten({1})}};
      call.f32_on_cpu = type == DType::bf16;
      calls.push_back(call);
      for (const double before : {0.25, 2.0}) {
        call.out = {{.shape = {1}, .fill = CaseOperand::Fill::number, .accumulate = true, .number = before}};
        calls.push_back(call);
      }
    }
  }
  for (const int64_t steps : {1, 16, 300}) {
    for (const int64_t ranks : {0, 1, 5}) {
      for (const Attrs& attrs : {Attrs{{"margin", int64_t{0}}}, Attrs{{"margin", int64_t{2}}, {"e5m2", true}},
                                 Attrs{{"margin", int64_t{0}}, {"most_recent", true}}}) {
        KernelCase call{.kernel = "update_fp8_scale",
                        .in = {{.shape = {2 + steps}, .fill = CaseOperand::Fill::positive}},
                        .attrs = attrs,
                        .tolerance = 1e-6};
        if (ranks > 0) call.in.push_back({.shape = {ranks}, .fill = CaseOperand::Fill::positive});
        calls.push_back(std::move(call));
      }
    }
  }
  return calls;
}

}  // namespace

extern const OpCases fp8_scale_cases = {.kernels = fp8_scale_kernels(),
                                        .kernel_references = {{"amax", amax}, {"update_fp8_scale", update_fp8_scale}}};

}  // namespace trainctl
