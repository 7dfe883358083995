// Cases of soft_cross_entropy: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The loss -sum t log softmax(x), computed from the probabilities themselves, and its gradient.
Outputs with_grad(const Inputs& in, const Attrs& attrs) {
  const int64_t c = in[0].shape.back();
  const double scale = attrs.number("scale", 1.0), smoothing = attrs.number("label_smoothing", 0);
  double sum = 0;
  Tensor64 grad = in[0];
  for (int64_t first = 0; first < static_cast<int64_t>(in[0].values.size()); first += c) {
    double exps = 0, targets = 0;
    for (int64_t i = 0; i < c; ++i) exps += std::exp(in[0].values[first + i]);
    const auto target = [&](int64_t i) {
      return (1 - smoothing) * in[1].values[first + i] + smoothing / static_cast<double>(c);
    };
    for (int64_t i = 0; i < c; ++i) {
      sum -= target(i) * std::log(std::exp(in[0].values[first + i]) / exps);
      targets += target(i);
    }
    for (int64_t i = 0; i < c; ++i)
      grad.values[first + i] = scale * (targets * std::exp(in[0].values[first + i]) / exps - target(i));
  }
  return {{{1}, {scale * sum}}, grad};
}

Attrs scaled_by(double s) { return {{"scale", s}}; }
Attrs smoothed(double s) { return {{"scale", s}, {"label_smoothing", 0.2}}; }

std::vector<KernelCase> soft_cross_entropy_kernels() {
  std::vector<KernelCase> calls;
  for (const Shape& shape : {Shape{5, 1}, Shape{12, 7}, Shape{2, 3, 37}, Shape{300, 8}, Shape{3, 5001}}) {
    const CaseOperand x{shape}, bf16{.shape = shape, .dtype = DType::bf16};
    const CaseOperand label{.shape = shape, .fill = CaseOperand::Fill::positive};
    const CaseOperand sum{.shape = {1}, .fill = CaseOperand::Fill::number, .accumulate = true, .number = 0.5};
    for (const Attrs& attrs : {scaled_by(0.01), smoothed(0.01)}) {
      calls.push_back({"soft_cross_entropy_with_grad", {x, label}, {unwritten({1}), unwritten(shape)}, attrs, 5e-6});
      calls.push_back({"soft_cross_entropy_with_grad", {x, label}, {sum, unwritten(shape)}, attrs, 5e-6});
      calls.push_back({"soft_cross_entropy_with_grad",
                       {bf16, label},
                       {unwritten({1}), unwritten(shape, DType::bf16)},
                       attrs,
                       1e-2});
      calls.back().f32_on_cpu = true;
    }
  }
  return calls;
}

}  // namespace

extern const OpCases soft_cross_entropy_cases = {
    .rows = {{"soft_cross_entropy", {{{6, 10}}, fixed({6, 10})}, scaled_by(1.0 / 6), {{1}}},
             {"soft_cross_entropy", {{{4, 3, 37}}, fixed({4, 3, 37})}, scaled_by(1.0 / 12), {{1}}},
             {"soft_cross_entropy", {{{4, 12}}, fixed({4, 12})}, smoothed(0.25), {{1}}},
             {"soft_cross_entropy", {{{2, 1}}, fixed({2, 1})}, scaled_by(1.0), {{1}}}},
    .references = {{"soft_cross_entropy",
                    [](const Inputs& in, const Attrs& attrs) { return Outputs{with_grad(in, attrs)[0]}; }}},
    .rules = {{{"soft_cross_entropy", {{{2, 3, 5}}, {{2, 3, 5}}}}, "abc,abc->()", "c", {{1}}}},
    .gradients = {{{"soft_cross_entropy", {{{2, 5}}, {{2, 5}}}},
                   {"soft_cross_entropy_grad ac,ac->ac"},
                   "each row is independent of the others; its sums over c stay within the row, and c is uncuttable",
                   "c"}},
    .shape_errors = {{{"soft_cross_entropy", {{{2, 3}}, {{2, 4}}}},
                      "soft_cross_entropy: the label is [2, 4], expected [2, 3]"},
                     {{"soft_cross_entropy", {{{2, 3}}, {{2, 3}, DType::i32}}},
                      "soft_cross_entropy expects f32, but got [2, 3] i32"}},
    .kernels = soft_cross_entropy_kernels(),
    .kernel_references = {{"soft_cross_entropy_with_grad",
                           [](const NaiveCall& call) { return with_grad(call.in, call.attrs); }}},
};

}  // namespace trainctl
