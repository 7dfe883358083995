// Cases of top_k_correct: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <algorithm>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// Counts the correct rows by sorting each row; among equal predictions the lower class comes first.
Tensor64 count(const Inputs& in, const Attrs& attrs) {
  const int64_t classes = in[0].shape.back(), k = attrs.integer("k", 1);
  double correct = 0;
  for (size_t r = 0; r < in[1].values.size(); ++r) {
    if (attrs.has("ignore_index") && in[1].values[r] == static_cast<double>(attrs.integer("ignore_index", 0))) continue;
    const double* x = in[0].values.data() + static_cast<int64_t>(r) * classes;
    std::vector<int64_t> order(static_cast<size_t>(classes));
    for (int64_t i = 0; i < classes; ++i) order[static_cast<size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] > x[b]; });
    const auto end = order.begin() + k;
    correct += std::find(order.begin(), end, static_cast<int64_t>(in[1].values[r])) != end;
  }
  return {{1}, {correct}};
}

Attrs top(int64_t k) { return {{"k", k}}; }

std::vector<KernelCase> top_k_correct_kernels() {
  std::vector<KernelCase> calls;
  for (const int64_t classes : {1, 7, 37, 1000}) {
    const int64_t k = std::min<int64_t>(classes, 3);
    const CaseOperand x{{131, classes}}, bf16{.shape = {131, classes}, .dtype = DType::bf16};
    const CaseOperand tied{.shape = {131, classes}, .fill = CaseOperand::Fill::number, .number = 0.25};
    const CaseOperand label{
        .shape = {131}, .fill = CaseOperand::Fill::ids, .dtype = DType::i32, .number = static_cast<double>(classes)};
    const CaseOperand sum{.shape = {1}, .fill = CaseOperand::Fill::number, .accumulate = true, .number = 7};
    calls.push_back({"top_k_correct", {x, label}, {unwritten({1})}, top(k), 0});
    calls.push_back({"top_k_correct", {x, label}, {sum}, top(1), 0});
    calls.push_back({"top_k_correct", {tied, label}, {unwritten({1})}, top(k), 0});
    calls.push_back({"top_k_correct", {x, label}, {sum}, {{"k", k}, {"ignore_index", int64_t{0}}}, 0});
    calls.push_back({"top_k_correct", {bf16, label}, {unwritten({1})}, top(k), 0});
    calls.back().f32_on_cpu = true;
  }
  return calls;
}

}  // namespace

extern const OpCases top_k_correct_cases = {
    .rows = {{"top_k_correct", {fixed({6, 10}), ids({6}, 10)}, top(1), {{1}}},
             {"top_k_correct", {fixed({4, 3, 37}), ids({4, 3}, 37)}, top(5), {{1}}},
             {"top_k_correct", {fixed({17, 2}), ids({17}, 2)}, top(2), {{1}}},
             {"top_k_correct", {fixed({2, 1}), ids({2}, 1)}, top(1), {{1}}}},
    .references = {{"top_k_correct", [](const Inputs& in, const Attrs& attrs) { return Outputs{count(in, attrs)}; }}},
    .rules = {{{"top_k_correct", {{{2, 3, 5}}, {{2, 3}, DType::i32}}}, "abc,ab->()", "c", {{1}}}},
    .shape_errors = {{{"top_k_correct", {{{2, 3}}, {{3}, DType::i32}}},
                      "top_k_correct: the label is [3] i32, expected [2]"},
                     {{"top_k_correct", {{{2, 3}}, {{2}}}}, "top_k_correct: the label is f32, expected i32"},
                     {{"top_k_correct", {{{2, 3}}, {{2}, DType::i32}}, {{"k", int64_t{4}}}},
                      "k is 4, but the prediction [2, 3] has 3 classes"}},
    .kernels = top_k_correct_kernels(),
    .kernel_references = {{"top_k_correct", [](const NaiveCall& call) { return Outputs{count(call.in, call.attrs)}; }}},
};

}  // namespace trainctl
