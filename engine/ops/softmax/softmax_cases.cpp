// Cases of softmax: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs softmax(const Inputs& in, const Attrs& attrs) {
  const int64_t dim = attrs.integer("dim");
  return {make(in[0].shape, [&](const Index& i) {
    double sum = 0;
    Index j = i;
    for (j[dim] = 0; j[dim] < in[0].shape[dim]; ++j[dim]) sum += std::exp(at(in[0], j) - at(in[0], i));
    return 1.0 / sum;
  })};
}

Attrs dim(int64_t d) { return {{"dim", d}}; }

/// Calls f(row, i) for all elements. `i`: index of the element; `row`: index of the row along attr dim that contains
/// it.
template <class F>
void for_each_element(const Shape& shape, const Attrs& attrs, F f) {
  const int64_t dim = attrs.integer("dim");
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(dim) + 1; d < shape.size(); ++d) inner *= shape[d];
  for (int64_t i = 0; i < num_elements(shape); ++i) f(i / (shape[dim] * inner) * inner + i % inner, i);
}

Shape rows_of(Shape shape, const Attrs& attrs, int64_t numbers) {
  shape.erase(shape.begin() + attrs.integer("dim"));
  shape.push_back(numbers);
  return shape;
}

Outputs softmax_stats(const NaiveCall& call) {
  Tensor64 out = zeros(rows_of(call.in[0].shape, call.attrs, 2));
  for (size_t i = 0; i < out.values.size(); i += 2) out.values[i] = -INFINITY;
  const auto over = [&](auto f) { for_each_element(call.in[0].shape, call.attrs, f); };
  over([&](int64_t row, int64_t i) { out.values[2 * row] = std::max(out.values[2 * row], call.in[0].values[i]); });
  over(
      [&](int64_t row, int64_t i) { out.values[2 * row + 1] += std::exp(call.in[0].values[i] - out.values[2 * row]); });
  return {out};
}

/// y of a shard of rows, from the statistics [parts, .., 2] of all shards.
Outputs softmax_apply(const NaiveCall& call) {
  const Tensor64 &x = call.in[0], &softmax_stats = call.in[1];
  const int64_t rows = num_elements(softmax_stats.shape) / softmax_stats.shape[0] / 2;
  Tensor64 y = x;
  for_each_element(x.shape, call.attrs, [&](int64_t row, int64_t i) {
    double sum = 0;
    for (int64_t p = 0; p < softmax_stats.shape[0]; ++p) {
      const double* part = softmax_stats.values.data() + (p * rows + row) * 2;
      sum += part[1] * std::exp(part[0] - x.values[i]);
    }
    y.values[i] = 1.0 / sum;
  });
  return {y};
}

Outputs softmax_grad_stats(const NaiveCall& call) {
  Tensor64 out = zeros(rows_of(call.in[0].shape, call.attrs, 1));
  for_each_element(call.in[0].shape, call.attrs,
                   [&](int64_t row, int64_t i) { out.values[row] += call.in[0].values[i] * call.in[1].values[i]; });
  return {out};
}

Outputs softmax_grad_apply(const NaiveCall& call) {
  const Tensor64 &dy = call.in[0], &y = call.in[1], &softmax_stats = call.in[2];
  const int64_t rows = num_elements(softmax_stats.shape) / softmax_stats.shape[0];
  Tensor64 dx = dy;
  for_each_element(dy.shape, call.attrs, [&](int64_t row, int64_t i) {
    double sum = 0;
    for (int64_t p = 0; p < softmax_stats.shape[0]; ++p) sum += softmax_stats.values[p * rows + row];
    dx.values[i] = y.values[i] * (dy.values[i] - sum);
  });
  return {dx};
}

/// Cases with two and three shards of rows along the last and another dim: odd sizes, single elements and long rows.
std::vector<KernelCase> softmax_kernels() {
  std::vector<KernelCase> calls;
  using Fill = CaseOperand::Fill;
  const std::pair<Shape, int64_t> shapes[] = {{{5, 7}, 1},    {{4, 1}, 1},     {{3, 1024}, 1},
                                              {{3, 5001}, 1}, {{2, 6, 37}, 1}, {{3, 71}, 0}};
  for (const auto& [shape, d] : shapes) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const bool bf16 = type == DType::bf16;
      const auto stats_of = [&, d = d, shape = shape](int64_t parts, int64_t numbers) {
        CaseOperand softmax_stats{rows_of(shape, dim(d), numbers), Fill::positive};
        softmax_stats.shape.insert(softmax_stats.shape.begin(), parts);
        return softmax_stats;
      };
      const CaseOperand x{.shape = shape, .dtype = type}, out = unwritten(shape, type);
      const double tolerance = bf16 ? 1e-2 : 5e-6;
      const auto add = [&, d = d](const char* kernel, std::vector<CaseOperand> in, CaseOperand result) {
        calls.push_back({kernel, std::move(in), {std::move(result)}, dim(d), tolerance});
        calls.back().f32_on_cpu = bf16;
      };
      add("softmax_stats", {x}, unwritten(rows_of(shape, dim(d), 2)));
      add("softmax_apply", {x, stats_of(2, 2)}, out);
      add("softmax_grad_stats", {x, x}, unwritten(rows_of(shape, dim(d), 1)));
      add("softmax_grad_apply", {x, x, stats_of(3, 1)}, out);
    }
  }
  return calls;
}

}  // namespace

extern const OpCases softmax_cases = {
    .rows = {{"softmax", {{{6, 7}}}, dim(1), {{6, 7}}},
             {"softmax", {{{4, 5, 6}}}, dim(1), {{4, 5, 6}}},
             {"softmax", {{{3, 71}}}, dim(0), {{3, 71}}},
             {"softmax", {{{4, 37}}}, dim(1), {{4, 37}}},
             {"softmax", {{{2, 36}}}, dim(1), {{2, 36}}},
             {"softmax", {{{12, 5}}}, dim(0), {{12, 5}}},
             {"softmax", {{{4, 1}}}, dim(1), {{4, 1}}}},
    .references = {{"softmax", softmax}},
    .rules = {{{"softmax", {{{2, 3, 4}}}, dim(1)}, "abc->abc", "", {{2, 3, 4}}, "b"}},
    .gradients = {{{"softmax", {{{2, 3}}}, dim(1)}, {"softmax_grad ab,ab->ab"}, "ranks exchange its sum over b"}},
    .shape_errors = {{{"softmax", {{{2, 3}}}, dim(2)}, "softmax: there is no dim 2 in [2, 3]"}},
    .kernels = softmax_kernels(),
    .kernel_references = {{"softmax_stats", softmax_stats},
                          {"softmax_apply", softmax_apply},
                          {"softmax_grad_stats", softmax_grad_stats},
                          {"softmax_grad_apply", softmax_grad_apply}},
    .layers = {{"softmax", "", {8, 12}}, {"softmax", ", dim: 0", {8, 12}}, {"log_softmax", "", {8, 12}}},
};

}  // namespace trainctl
