#include <cmath>
#include <limits>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The loss, and its gradient.
Outputs with_grad(const Inputs& in, const Attrs& attrs) {
  const int64_t c = in[0].shape.back();
  const double scale = attrs.number("scale", 1.0);
  double sum = 0;
  Tensor64 grad = in[0];
  for (size_t r = 0; r < in[1].values.size(); ++r) {
    const double* x = in[0].values.data() + static_cast<int64_t>(r) * c;
    const auto label = static_cast<int64_t>(in[1].values[r]);
    double exps = 0;
    for (int64_t i = 0; i < c; ++i) exps += std::exp(x[i] - x[label]);
    sum += std::log(exps);
    for (int64_t i = 0; i < c; ++i)
      grad.values[static_cast<int64_t>(r) * c + i] = scale * (std::exp(x[i] - x[label]) / exps - (i == label ? 1 : 0));
  }
  return {{{1}, {scale * sum}}, grad};
}

Attrs scale(double s) { return {{"scale", s}}; }

Shape three_a_row(Shape shape) {
  shape.back() = 3;
  return shape;
}

/// All classes are this part's.
Outputs stats(const NaiveCall& call) {
  const Tensor64& logits = call.in[0];
  const int64_t n = logits.shape.back();
  Tensor64 out = zeros(three_a_row(logits.shape));
  for (size_t r = 0; r < call.in[1].values.size(); ++r) {
    const double* x = logits.values.data() + static_cast<int64_t>(r) * n;
    double* to = out.values.data() + 3 * r;
    to[0] = std::numeric_limits<float>::lowest();  // of no other class
    for (int64_t i = 0; i < n; ++i)
      if (i != static_cast<int64_t>(call.in[1].values[r])) to[0] = std::max(to[0], x[i]);
    for (int64_t i = 0; i < n; ++i)
      if (i != static_cast<int64_t>(call.in[1].values[r])) to[1] += std::exp(x[i] - to[0]);
    to[2] = x[static_cast<int64_t>(call.in[1].values[r])];
  }
  return {out};
}

/// log of the sum over all parts of row r, and the label's logit.
std::pair<double, double> of_parts(const Tensor64& stats, int64_t r) {
  const int64_t parts = stats.shape[0], rows = num_elements(stats.shape) / parts / 3;
  double sum = 0, correct = -INFINITY;
  for (int64_t p = 0; p < parts; ++p) {
    const double* part = stats.values.data() + (p * rows + r) * 3;
    sum += part[1] * std::exp(part[0]);
    correct = part[2];  // in a run of a program only one part has it; here all do, and the last counts
  }
  return {std::log(sum + std::exp(correct)), correct};
}

Outputs apply(const NaiveCall& call) {
  double sum = 0;
  for (int64_t r = 0; r < num_elements(call.in[1].shape); ++r) {
    const auto [log_sum, correct] = of_parts(call.in[2], r);
    sum += log_sum - correct;
  }
  return {{{1}, {call.attrs.number("scale") * sum}}};
}

Outputs grad_apply(const NaiveCall& call) {
  const int64_t n = call.in[0].shape.back();
  Tensor64 grad = call.in[0];
  for (int64_t i = 0; i < num_elements(grad.shape); ++i) {
    const auto [log_sum, correct] = of_parts(call.in[2], i / n);
    const bool is_label = i % n == static_cast<int64_t>(call.in[1].values[i / n]);
    const double x = is_label ? correct : grad.values[i];
    grad.values[i] = call.attrs.number("scale") * (std::exp(x - log_sum) - (is_label ? 1 : 0));
  }
  return {grad};
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
  }
  for (const Shape& shape :
       {Shape{5, 7}, Shape{4, 1}, Shape{2, 3, 37}, Shape{3, 1024}, Shape{3, 5001}, Shape{300, 8}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const bool bf16 = type == DType::bf16;
      const CaseOperand x{.shape = shape, .dtype = type},
          label{.shape = Shape(shape.begin(), shape.end() - 1),
                .fill = CaseOperand::Fill::ids,
                .dtype = DType::i32,
                .number = static_cast<double>(shape.back())},
          sum{.shape = {1}, .fill = CaseOperand::Fill::number, .accumulate = true, .number = 0.5};
      CaseOperand stats{three_a_row(shape), CaseOperand::Fill::positive};
      stats.shape.insert(stats.shape.begin(), 2);
      const auto add = [&](const char* kernel, std::vector<CaseOperand> in, CaseOperand out) {
        calls.push_back({kernel, std::move(in), {std::move(out)}, scale(0.01), bf16 ? 1e-2 : 5e-6});
        calls.back().f32_on_cpu = bf16;
      };
      add("softmax_cross_entropy_stats", {x, label}, unwritten(three_a_row(shape)));
      add("softmax_cross_entropy_apply", {x, label, stats}, unwritten({1}));
      add("softmax_cross_entropy_apply", {x, label, stats}, sum);
      add("softmax_cross_entropy_grad_apply", {x, label, stats}, unwritten(shape, type));
    }
  }
  return calls;
}

}  // namespace

extern const OpCases softmax_cross_entropy_cases = {
    .rows = {{"softmax_cross_entropy", {{{6, 10}}, ids({6}, 10)}, scale(1.0 / 6), {{1}}},
             {"softmax_cross_entropy", {{{4, 3, 37}}, ids({4, 3}, 37)}, scale(1.0 / 12), {{1}}},
             {"softmax_cross_entropy", {{{5, 36}}, ids({5}, 36)}, scale(0.2), {{1}}},
             {"softmax_cross_entropy", {{{2, 1}}, ids({2}, 1)}, scale(1.0), {{1}}}},
    .references = {{"softmax_cross_entropy",
                    [](const Inputs& in, const Attrs& attrs) { return Outputs{with_grad(in, attrs)[0]}; }}},
    .rules = {{{"softmax_cross_entropy", {{{2, 3, 5}}, {{2, 3}, DType::i32}}}, "abc,ab->()", "", {{1}}, "c"}},
    .gradients = {{{"softmax_cross_entropy", {{{2, 5}}, {{2}, DType::i32}}},
                   {"softmax_cross_entropy_grad ac,a->ac"},
                   "row by row; its sum over c is an inner one"}},
    .shape_errors = {{{"softmax_cross_entropy", {{{2, 3}}, {{3}, DType::i32}}},
                      "softmax_cross_entropy: the label is [3] i32, expected [2]"},
                     {{"softmax_cross_entropy", {{{2, 3}}, {{2}}}},
                      "softmax_cross_entropy: the label is f32, expected i32"}},
    .kernels = kernels(),
    .kernel_references = {{"softmax_cross_entropy_with_grad",
                           [](const NaiveCall& call) { return with_grad(call.in, call.attrs); }},
                          {"softmax_cross_entropy_stats", stats},
                          {"softmax_cross_entropy_apply", apply},
                          {"softmax_cross_entropy_grad_apply", grad_apply}},
};

}  // namespace trainctl
