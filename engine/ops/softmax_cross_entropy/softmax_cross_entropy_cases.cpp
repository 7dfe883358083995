#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The loss, and its gradient. `label_weight`: StepScalars'.
Outputs with_grad(const Inputs& in, const Attrs& attrs, double label_weight = 1) {
  const int64_t c = in[0].shape.back();
  const bool ignores = attrs.has("ignore_index");
  const double scale = attrs.number("scale", 1.0) * (ignores ? label_weight : 1), e = attrs.number("label_smoothing", 0);
  double sum = 0;
  Tensor64 grad = in[0];
  for (size_t r = 0; r < in[1].values.size(); ++r) {
    const double* x = in[0].values.data() + static_cast<int64_t>(r) * c;
    const auto label = static_cast<int64_t>(in[1].values[r]);
    if (ignores && label == attrs.integer("ignore_index")) {
      for (int64_t i = 0; i < c; ++i) grad.values[static_cast<int64_t>(r) * c + i] = 0;
      continue;
    }
    double exps = 0;
    for (int64_t i = 0; i < c; ++i) exps += std::exp(x[i] - x[label]);
    const double top = x[label] + std::log(exps);  // log of the sum of e^x
    for (int64_t i = 0; i < c; ++i) {
      const double target = e / static_cast<double>(c) + (i == label ? 1 - e : 0);
      sum += target * (top - x[i]);
      grad.values[static_cast<int64_t>(r) * c + i] = scale * (std::exp(x[i] - top) - target);
    }
  }
  return {{{1}, {scale * sum}}, grad};
}

Attrs scale(double s) { return {{"scale", s}}; }

/// Other targets than the labels' classes alone.
std::vector<Attrs> other_targets(double scale) {
  return {{{"scale", scale}, {"label_smoothing", 0.1}},
          {{"scale", scale}, {"label_smoothing", 1.0}},
          {{"scale", scale}, {"ignore_index", int64_t{0}}},
          {{"scale", scale}, {"ignore_index", int64_t{-100}}},
          {{"scale", scale}, {"label_smoothing", 0.3}, {"ignore_index", int64_t{2}}}};
}

std::vector<OpCase> rows() {
  std::vector<OpCase> rows = {{"softmax_cross_entropy", {{{6, 10}}, ids({6}, 10)}, scale(1.0 / 6), {{1}}},
                              {"softmax_cross_entropy", {{{4, 3, 37}}, ids({4, 3}, 37)}, scale(1.0 / 12), {{1}}},
                              {"softmax_cross_entropy", {{{2, 1}}, ids({2}, 1)}, scale(1.0), {{1}}}};
  for (const Attrs& attrs : other_targets(1.0 / 12)) {
    rows.push_back({"softmax_cross_entropy", {{{4, 3, 37}}, ids({4, 3}, 5)}, attrs, {{1}}});
    rows.push_back({"softmax_cross_entropy", {{{12, 10}}, ids({12}, 4)}, attrs, {{1}}});
    rows.push_back({"softmax_cross_entropy", {{{2, 1}}, ids({2}, 1)}, attrs, {{1}}});
  }
  return rows;
}

std::vector<KernelCase> kernels() {
  std::vector<KernelCase> calls;
  for (const int64_t classes : {1, 7, 37, 1000}) {
    const CaseOperand x{{12, classes}}, bf16{.shape = {12, classes}, .dtype = DType::bf16};
    const CaseOperand label{
        .shape = {12}, .fill = CaseOperand::Fill::ids, .dtype = DType::i32, .number = static_cast<double>(classes)};
    const CaseOperand sum{.shape = {1}, .fill = CaseOperand::Fill::number, .accumulate = true, .number = 0.5};
    calls.push_back(
        {"softmax_cross_entropy_with_grad", {x, label}, {unwritten({1}), unwritten({12, classes})}, scale(0.01), 2e-6});
    calls.push_back(
        {"softmax_cross_entropy_with_grad", {x, label}, {sum, unwritten({12, classes})}, scale(0.01), 2e-6});
    calls.push_back({"softmax_cross_entropy_with_grad",
                     {bf16, label},
                     {unwritten({1}), unwritten({12, classes}, DType::bf16)},
                     scale(0.01),
                     1e-2});
    calls.back().f32_on_cpu = true;
    for (const Attrs& attrs : other_targets(0.01)) {
      calls.push_back({"softmax_cross_entropy_with_grad",
                       {x, label},
                       {unwritten({1}), unwritten({12, classes})},
                       attrs,
                       2e-6,
                       {.label_weight = 1.5}});
    }
  }
  return calls;
}

}  // namespace

extern const OpCases softmax_cross_entropy_cases = {
    .rows = rows(),
    .references = {{"softmax_cross_entropy",
                    [](const Inputs& in, const Attrs& attrs) { return Outputs{with_grad(in, attrs)[0]}; }}},
    .rules = {{{"softmax_cross_entropy", {{{2, 3, 5}}, {{2, 3}, DType::i32}}}, "abc,ab->()", "c", {{1}}}},
    .gradients = {{{"softmax_cross_entropy", {{{2, 5}}, {{2}, DType::i32}}},
                   {"softmax_cross_entropy_grad ac,a->ac"},
                   "row by row; c is uncuttable"}},
    .shape_errors = {{{"softmax_cross_entropy", {{{2, 3}}, {{3}, DType::i32}}},
                      "softmax_cross_entropy: the label is [3] i32, expected [2]"},
                     {{"softmax_cross_entropy", {{{2, 3}}, {{2}}}},
                      "softmax_cross_entropy: the label is f32, expected i32"}},
    .kernels = kernels(),
    .kernel_references = {{"softmax_cross_entropy_with_grad",
                           [](const NaiveCall& call) {
                             return with_grad(call.in, call.attrs, double{call.scalars.label_weight});
                           }}},
};

}  // namespace trainctl
