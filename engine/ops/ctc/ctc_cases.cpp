// Cases of ctc: its loss by enumerating all paths, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The loss by its definition: -log of the sum of the probabilities of all sequences of classes that reduce to the
/// label. It uses neither the states of the lattice nor sums of logarithms.
double ctc_row_loss(const Tensor64& logits, const std::vector<int64_t>& label, int64_t row, int64_t steps,
                    int64_t blank) {
  const int64_t classes = logits.shape[2];
  std::vector<int64_t> states = {blank};
  for (const int64_t l : label) states.insert(states.end(), {l, blank});
  std::vector<double> paths(states.size(), 0.0);
  for (int64_t t = 0; t < steps; ++t) {
    const double* x = logits.values.data() + (row * logits.shape[1] + t) * classes;
    double sum = 0;
    for (int64_t k = 0; k < classes; ++k) sum += std::exp(x[k]);
    const std::vector<double> before = paths;
    for (size_t s = 0; s < states.size(); ++s) {
      double arrive = t == 0 ? (s < 2 ? 1.0 : 0.0) : before[s];
      if (t > 0 && s >= 1) arrive += before[s - 1];
      if (t > 0 && s >= 2 && states[s] != blank && states[s] != states[s - 2]) arrive += before[s - 2];
      paths[s] = arrive * std::exp(x[states[s]]) / sum;
    }
  }
  double all = paths.back() + (paths.size() > 1 ? paths[paths.size() - 2] : 0.0);
  if (steps == 0) all = label.empty() ? 1.0 : 0.0;
  return -std::log(all);
}

/// The loss of each row, with the lengths and the options of the attrs.
Tensor64 ctc_losses(const Inputs& in, const Attrs& attrs) {
  const int64_t blank = attrs.integer("blank"), most = in[1].shape[1];
  size_t next = 2;
  const Tensor64* steps = attrs.flag("input_lengths") ? &in[next++] : nullptr;
  const Tensor64* counts = attrs.flag("label_lengths") ? &in[next++] : nullptr;
  return make({in[0].shape[0]}, [&](const Index& i) {
    std::vector<int64_t> label;
    for (int64_t k = 0; k < most; ++k) {
      const auto value = static_cast<int64_t>(in[1].values[static_cast<size_t>(i[0] * most + k)]);
      if (counts != nullptr ? k >= static_cast<int64_t>(at(*counts, i)) : value < 0 || value == blank) break;
      label.push_back(value);
    }
    const double loss = ctc_row_loss(in[0], label, i[0],
                                     steps != nullptr ? static_cast<int64_t>(at(*steps, i)) : in[0].shape[1], blank);
    if (std::isinf(loss) && attrs.flag("zero_infinity")) return 0.0;
    return attrs.flag("by_length") ? loss / std::max<double>(1, static_cast<double>(label.size())) : loss;
  });
}

/// Central differences of ctc_losses.
Outputs ctc_gradient(const NaiveCall& call) {
  constexpr double kStep = 1e-4;
  Tensor64 grad = zeros(call.in[0].shape);
  const int64_t of_row = grad.shape[1] * grad.shape[2];
  Inputs in = call.in;
  in.pop_back();
  for (size_t e = 0; e < grad.values.size(); ++e) {
    const size_t row = e / static_cast<size_t>(of_row);
    const double x = in[0].values[e];
    in[0].values[e] = x + kStep;
    const double above = ctc_losses(in, call.attrs).values[row];
    in[0].values[e] = x - kStep;
    const double below = ctc_losses(in, call.attrs).values[row];
    in[0].values[e] = x;
    grad.values[e] = call.in.back().values[row] * (above - below) / (2 * kStep);
  }
  return {grad};
}

Attrs ctc_attrs(int64_t blank, bool by_length = true, bool steps = false, bool counts = false) {
  Attrs attrs{{"blank", blank}, {"by_length", by_length}};
  if (steps) attrs.set("input_lengths", true);
  if (counts) attrs.set("label_lengths", true);
  return attrs;
}

/// Cases with lengths of inputs and labels, empty labels, labels that no path emits, and several types.
std::vector<KernelCase> ctc_kernels() {
  using Fill = CaseOperand::Fill;
  std::vector<KernelCase> calls;
  const auto add = [&](CaseOperand labels, int64_t steps, int64_t count, Attrs attrs, bool bf16) {
    const Shape logits = {6, 7, 5};
    std::vector<CaseOperand> in = {{.shape = logits, .dtype = bf16 ? DType::bf16 : DType::f32}, std::move(labels)};
    for (const int64_t n : {steps, count})
      if (n >= 0)
        in.push_back({.shape = {6}, .fill = Fill::number, .dtype = DType::i32, .number = static_cast<double>(n)});
    calls.push_back({"ctc", in, {unwritten({6})}, attrs, bf16 ? 1e-2 : 5e-6});
    calls.back().f32_on_cpu = bf16;
    in.push_back({.shape = {6}});
    calls.push_back({"ctc_grad", in, {unwritten(logits, bf16 ? DType::bf16 : DType::f32)}, attrs, bf16 ? 2e-2 : 1e-5});
    calls.back().f32_on_cpu = bf16;
  };
  const CaseOperand labels{.shape = {6, 3}, .fill = Fill::ids, .dtype = DType::i32, .number = 4};
  const CaseOperand none{.shape = {6, 3}, .fill = Fill::number, .dtype = DType::i32, .number = -1};
  const CaseOperand equal{.shape = {6, 3}, .fill = Fill::number, .dtype = DType::i32, .number = 2};
  for (const bool bf16 : {false, true}) {
    add(labels, -1, -1, ctc_attrs(4), bf16);
    add(labels, 6, 2, ctc_attrs(4, false, true, true), bf16);
    add(equal, -1, 3, ctc_attrs(0, true, false, true), bf16);
    add(none, 5, -1, ctc_attrs(0, true, true), bf16);
  }
  Attrs zero = ctc_attrs(4, true, true, true);
  zero.set("zero_infinity", true);
  add(equal, 4, 3, zero, false);
  return calls;
}

}  // namespace

extern const OpCases ctc_cases = {
    .rows = {{"ctc", {{{6, 9, 5}}, ids({6, 3}, 4)}, ctc_attrs(4), {{6}}},
             {"ctc", {{{4, 11, 37}}, ids({4, 5}, 36)}, ctc_attrs(36, false), {{4}}},
             {"ctc", {{{12, 5, 3}}, ids({12, 2}, 3)}, ctc_attrs(0), {{12}}}},
    .references = {{"ctc", [](const Inputs& in, const Attrs& attrs) { return Outputs{ctc_losses(in, attrs)}; }}},
    .rules = {{{"ctc", {{{2, 7, 5}}, {{2, 3}, DType::i32}}, ctc_attrs(0)}, "atc,as->a", "tcs", {{2}}}},
    .gradients =
        {{{"ctc", {{{2, 7, 5}}, {{2, 3}, DType::i32}}, ctc_attrs(0)},
          {"ctc_grad atc,as,a->atc sums s"},
          "each row is independent of the others; its sums over s stay within the row, and t, c and s are uncuttable",
          "tcs"}},
    .shape_errors = {{{"ctc", {{{2, 5}}, {{2, 3}, DType::i32}}, ctc_attrs(0)},
                      "ctc needs a prediction [n, steps, classes], but got [2, 5]"},
                     {{"ctc", {{{2, 7, 5}}, {{3, 3}, DType::i32}}, ctc_attrs(0)},
                      "ctc: the labels are [3, 3] i32, expected [2, length] i32"},
                     {{"ctc", {{{2, 7, 5}}, {{2, 3}, DType::i32}}, ctc_attrs(5)},
                      "the blank is class 5, but the prediction [2, 7, 5] has 5 classes"}},
    .kernels = ctc_kernels(),
    .kernel_references = {{"ctc", [](const NaiveCall& call) { return Outputs{ctc_losses(call.in, call.attrs)}; }},
                          {"ctc_grad", ctc_gradient}},
};

}  // namespace trainctl
