// Cases of label_log_prob: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

double log_sum_of_row(const double* x, int64_t c) {
  double sum = 0;
  for (int64_t i = 0; i < c; ++i) sum += std::exp(x[i] - x[0]);
  return x[0] + std::log(sum);
}

Outputs label_log_probs(const Inputs& in, const Attrs&) {
  const int64_t c = in[0].shape.back();
  Tensor64 out = zeros(in[1].shape);
  for (size_t r = 0; r < out.values.size(); ++r) {
    const auto label = static_cast<int64_t>(in[1].values[r]);
    const double* x = in[0].values.data() + static_cast<int64_t>(r) * c;
    if (label >= 0) out.values[r] = x[label] - log_sum_of_row(x, c);
  }
  return {out};
}

/// Cases in which some labels are kNoTrainedLabel, that is, not trained.
std::vector<KernelCase> label_log_prob_kernels() {
  std::vector<KernelCase> calls;
  for (const int64_t classes : {int64_t{1}, int64_t{7}, int64_t{37}, int64_t{5001}}) {
    const CaseOperand none{.shape = {12}, .fill = CaseOperand::Fill::number, .dtype = DType::i32, .number = -100};
    calls.push_back({"label_log_prob", {{.shape = {12, classes}}, none}, {unwritten({12})}, {}, 2e-6});
    calls.push_back({"label_log_prob_grad",
                     {{.shape = {12, classes}}, none, {.shape = {12}}},
                     {unwritten({12, classes})},
                     {},
                     2e-6});
  }
  return calls;
}

}  // namespace

extern const OpCases label_log_prob_cases = {
    .rows = {{"label_log_prob", {{{6, 10}}, ids({6}, 10)}, {}, {{6}}},
             {"label_log_prob", {{{4, 3, 37}}, ids({4, 3}, 37)}, {}, {{4, 3}}},
             {"label_log_prob", {{{3, 5001}}, ids({3}, 5001)}, {}, {{3}}},
             {"label_log_prob", {{{2, 1}}, ids({2}, 1)}, {}, {{2}}}},
    .references = {{"label_log_prob", label_log_probs}},
    .rules = {{{"label_log_prob", {{{2, 3, 5}}, {{2, 3}, DType::i32}}}, "abc,ab->ab", "c", {{2, 3}}}},
    .gradients = {{{"label_log_prob", {{{2, 5}}, {{2}, DType::i32}}},
                   {"label_log_prob_grad ac,a,a->ac"},
                   "each row is independent of the others; its sum over c stays within the row, and c is uncuttable",
                   "c"}},
    .shape_errors = {{{"label_log_prob", {{{2, 3}}, {{3}, DType::i32}}},
                      "label_log_prob: the label is [3] i32, expected [2]"},
                     {{"label_log_prob", {{{2, 3}}, {{2}}}}, "label_log_prob: the label is f32, expected i32"}},
    .kernels = label_log_prob_kernels(),
    .kernel_references = {{"label_log_prob",
                           [](const NaiveCall& call) { return label_log_probs(call.in, call.attrs); }},
                          {"label_log_prob_grad",
                           [](const NaiveCall& call) {
                             Tensor64 grad = zeros(call.in[0].shape);
                             const int64_t c = grad.shape.back();
                             for (int64_t i = 0; i < static_cast<int64_t>(grad.values.size()); ++i) {
                               const double label = call.in[1].values[i / c];
                               const double* x = call.in[0].values.data() + i / c * c;
                               if (label < 0) continue;
                               const double share = std::exp(x[i % c] - log_sum_of_row(x, c));
                               grad.values[i] = call.in[2].values[i / c] *
                                                ((static_cast<double>(i % c) == label ? 1.0 : 0.0) - share);
                             }
                             return Outputs{grad};
                           }}},
};

}  // namespace trainctl
