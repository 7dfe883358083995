// Cases of distillation: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The loss, and its gradient by the definition of each term.
Outputs distilled(const Inputs& in, const Attrs& attrs, double label_weight = 1) {
  const int64_t c = in[0].shape.back(), k = in[2].shape.back();
  const bool ignores = attrs.has("ignore_index");
  const double t = attrs.number("temperature", 1.0), alpha = attrs.number("alpha", 1.0),
               scale = attrs.number("scale", 1.0) * (ignores ? label_weight : 1);
  const auto softmax = [](const double* x, int64_t n, double by) {
    std::vector<double> shares;
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) shares.push_back(std::exp(x[i] / by)), sum += shares.back();
    for (double& share : shares) share /= sum;
    return shares;
  };
  double loss = 0;
  Tensor64 grad = zeros(in[0].shape);
  for (size_t r = 0; r < in[1].values.size(); ++r) {
    const auto row = static_cast<int64_t>(r), label = static_cast<int64_t>(in[1].values[r]);
    if (ignores && label == attrs.integer("ignore_index")) continue;
    const double *x = in[0].values.data() + row * c, *teacher = in[2].values.data() + row * k;
    const std::vector<double> s = softmax(x, c, 1), q = softmax(x, c, t), p = softmax(teacher, k, t);
    loss -= (1 - alpha) * std::log(s[static_cast<size_t>(label)]);
    double* dx = grad.values.data() + row * c;
    for (int64_t i = 0; i < c; ++i)
      dx[i] = scale * ((1 - alpha) * (s[static_cast<size_t>(i)] - (i == label ? 1 : 0)) +
                       alpha * t * q[static_cast<size_t>(i)]);
    for (int64_t j = 0; j < k; ++j) {
      const auto at = static_cast<size_t>(j);
      const auto id = in.size() > 3 ? static_cast<size_t>(in[3].values[static_cast<size_t>(row * k + j)]) : at;
      loss += alpha * t * t * p[at] * (std::log(p[at]) - std::log(q[id]));
      dx[id] -= scale * alpha * t * p[at];
    }
  }
  return {{{1}, {scale * loss}}, grad};
}

Attrs distill(double t, double alpha) { return {{"scale", 0.125}, {"temperature", t}, {"alpha", alpha}}; }

Attrs distill_some() {
  Attrs attrs = distill(2, 0.25);
  attrs.set("ignore_index", int64_t{1});
  return attrs;
}

std::vector<KernelCase> distillation_kernels() {
  using Fill = CaseOperand::Fill;
  std::vector<KernelCase> calls;
  for (const auto& [rows, classes, k] :
       {std::tuple<int64_t, int64_t, int64_t>{12, 7, 3}, {5, 37, 8}, {3, 5001, 16}, {2, 9, 0}}) {
    const int64_t width = k == 0 ? classes : k;
    const CaseOperand label{
        .shape = {rows}, .fill = Fill::ids, .dtype = DType::i32, .number = static_cast<double>(classes)};
    const CaseOperand teacher{.shape = {rows, width}};
    const CaseOperand of{
        .shape = {rows, width}, .fill = Fill::ids, .dtype = DType::i32, .number = static_cast<double>(classes)};
    const CaseOperand sum{.shape = {1}, .fill = Fill::number, .accumulate = true, .number = 0.5};
    for (const Attrs& attrs : {distill(2, 0.5), distill_some()})
      for (const bool bf16 : {false, true}) {
        std::vector<CaseOperand> in = {
            {.shape = {rows, classes}, .dtype = bf16 ? DType::bf16 : DType::f32}, label, teacher};
        if (k > 0) in.push_back(of);
        calls.push_back({"distillation_with_grad",
                         in,
                         {sum, unwritten({rows, classes}, bf16 ? DType::bf16 : DType::f32)},
                         attrs,
                         bf16 ? 1e-2 : 5e-6,
                         {.label_weight = 1.5}});
        calls.back().f32_on_cpu = bf16;
      }
  }
  return calls;
}

}  // namespace

extern const OpCases distillation_cases = {
    .rows = {{"distillation", {{{6, 10}}, ids({6}, 10), fixed({6, 10})}, distill(2, 0.5), {{1}}},
             {"distillation",
              {{{4, 3, 37}}, ids({4, 3}, 37), fixed({4, 3, 5}), ids({4, 3, 5}, 37)},
              distill(1, 0.75),
              {{1}}},
             {"distillation", {{{12, 7}}, ids({12}, 7), fixed({12, 2}), ids({12, 2}, 7)}, distill(4, 1), {{1}}},
             {"distillation", {{{6, 7}}, ids({6}, 7), fixed({6, 7})}, distill(3, 0), {{1}}}},
    .references = {{"distillation",
                    [](const Inputs& in, const Attrs& attrs) { return Outputs{distilled(in, attrs)[0]}; }}},
    .rules = {{{"distillation", {{{2, 3, 5}}, {{2, 3}, DType::i32}, {{2, 3, 4}}, {{2, 3, 4}, DType::i32}}},
               "abc,ab,abk,abk->()",
               "ck",
               {{1}}},
              {{"distillation", {{{2, 5}}, {{2}, DType::i32}, {{2, 5}}}}, "ac,a,ac->()", "c", {{1}}}},
    .gradients =
        {{{"distillation", {{{2, 5}}, {{2}, DType::i32}, {{2, 3}}, {{2, 3}, DType::i32}}},
          {"distillation_grad ac,a,ak,ak->ac sums k"},
          "each row is independent of the others; its sums over c and k stay within the row, and neither is ever cut",
          "ck"}},
    .shape_errors = {{{"distillation", {{{2, 5}}, {{2}}, {{2, 5}}}}, "distillation: the label is f32, expected i32"},
                     {{"distillation", {{{2, 5}}, {{2}, DType::i32}, {{2, 3}}}},
                      "distillation: teacher_logits are [2, 3], expected [2, 5]: the logits of all classes, "
                      "because no field teacher_ids says which classes they belong to"},
                     {{"distillation", {{{2, 5}}, {{2}, DType::i32}, {{2, 3}}, {{2, 4}, DType::i32}}},
                      "distillation: teacher_ids are [2, 4] i32, but teacher_logits are [2, 3]"}},
    .kernels = distillation_kernels(),
    .kernel_references = {{"distillation_with_grad",
                           [](const NaiveCall& call) {
                             return distilled(call.in, call.attrs, double{call.scalars.label_weight});
                           }}},
};

}  // namespace trainctl
