// Cases of dice: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The label of an element of p.
double overlap_label(const Tensor64& p, const Tensor64& label, size_t element) {
  if (label.shape.size() == p.shape.size()) return label.values[element];
  const auto classes = static_cast<size_t>(p.shape.back());
  return static_cast<size_t>(label.values[element / classes]) == element % classes ? 1.0 : 0.0;
}

/// The index of the sums [rows, classes] to which an element of p contributes.
size_t overlap_sum(const Tensor64& p, size_t element) {
  const auto classes = static_cast<size_t>(p.shape.back()), of_row = p.values.size() / static_cast<size_t>(p.shape[0]);
  return element / of_row * classes + element % classes;
}

Outputs overlap(const Inputs& in, const Attrs& attrs) {
  const Tensor64& p = in[0];
  Tensor64 both = zeros({p.shape.front(), p.shape.back()}), all = both;
  for (size_t i = 0; i < p.values.size(); ++i) {
    const double v = p.values[i], g = overlap_label(p, in[1], i);
    both.values[overlap_sum(p, i)] += v * g;
    all.values[overlap_sum(p, i)] += attrs.flag("squared") ? v * v + g * g : v + g;
  }
  return {both, all};
}

Outputs overlap_gradient(const NaiveCall& call) {
  const Tensor64& p = call.in[0];
  Tensor64 grad = p;
  for (size_t i = 0; i < p.values.size(); ++i) {
    const size_t sum = overlap_sum(p, i);
    grad.values[i] = call.in[2].values[sum] * overlap_label(p, call.in[1], i) +
                     call.in[3].values[sum] * (call.attrs.flag("squared") ? 2 * p.values[i] : 1.0);
  }
  return {grad};
}

/// Cases with rows that are divided into parts, with more classes than a block has threads, and with several types.
std::vector<KernelCase> overlap_kernels() {
  using Fill = CaseOperand::Fill;
  std::vector<KernelCase> calls;
  for (const Shape& shape : {Shape{2, 9001, 2}, Shape{3, 5, 300}, Shape{2, 7, 3, 5}}) {
    for (const bool bf16 : {false, true}) {
      const DType type = bf16 ? DType::bf16 : DType::f32;
      const Shape sums = {shape.front(), shape.back()};
      const CaseOperand label{.shape = Shape(shape.begin(), shape.end() - 1),
                              .fill = Fill::ids,
                              .dtype = DType::i32,
                              .number = static_cast<double>(shape.back())};
      const CaseOperand p{.shape = shape, .fill = Fill::positive, .dtype = type};
      calls.push_back({"overlap", {p, label}, {unwritten(sums), unwritten(sums)}, {}, bf16 ? 1e-2 : 5e-6});
      calls.back().f32_on_cpu = bf16;
      calls.push_back({"overlap_grad",
                       {p, label, {.shape = sums}, {.shape = sums}},
                       {unwritten(shape, type)},
                       {{"squared", true}},
                       bf16 ? 1e-2 : 5e-6});
      calls.back().f32_on_cpu = bf16;
    }
  }
  return calls;
}

}  // namespace

extern const OpCases dice_cases = {
    .rows = {{"overlap", {{{4, 6, 5}}, ids({4, 6}, 5)}, {}, {{4, 5}, {4, 5}}},
             {"overlap", {{{2, 3, 4, 7}}, fixed({2, 3, 4, 7})}, {}, {{2, 7}, {2, 7}}},
             {"overlap", {{{4, 12, 2}}, ids({4, 12}, 2)}, {{"squared", true}}, {{4, 2}, {4, 2}}},
             {"overlap", {{{6, 3}}, ids({6}, 3)}, {}, {{6, 3}, {6, 3}}}},
    .references = {{"overlap", overlap}},
    .rules = {{{"overlap", {{{2, 4, 3}}, {{2, 4}, DType::i32}}}, "abc,ab->ac,ac", "", {{2, 3}, {2, 3}}},
              {{"overlap", {{{2, 4, 3}}, {{2, 4, 3}}}}, "abc,abc->ac,ac", "", {{2, 3}, {2, 3}}}},
    .gradients = {{{"overlap", {{{2, 4, 3}}, {{2, 4}, DType::i32}}},
                   {"overlap_grad abc,ab,ac->abc"},
                   "each element is independent of the others"}},
    .shape_errors = {{{"overlap", {{{2, 4, 3}}, {{2, 3}, DType::i32}}},
                      "overlap: the label is [2, 3] i32, expected [2, 4]"},
                     {{"overlap", {{{2, 4, 3}}, {{2, 4}}}}, "overlap: the label is [2, 4], expected [2, 4, 3]"}},
    .kernels = overlap_kernels(),
    .kernel_references = {{"overlap", [](const NaiveCall& call) { return overlap(call.in, call.attrs); }},
                          {"overlap_grad", overlap_gradient}},
};

}  // namespace trainctl
