// Cases of layer_norm: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// y, and the mean and inverse standard deviation of each row.
Outputs layer_norm(const Inputs& in, const Attrs& attrs) {
  const int64_t n = in[0].shape.back(), rows = num_elements(in[0].shape) / n;
  const Shape leading(in[0].shape.begin(), in[0].shape.end() - 1);
  Outputs out{in[0], {leading, std::vector<double>(rows)}, {leading, std::vector<double>(rows)}};
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, var = 0;
    for (int64_t i = 0; i < n; ++i) mean += in[0].values[r * n + i] / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) var += std::pow(in[0].values[r * n + i] - mean, 2) / static_cast<double>(n);
    out[1].values[r] = mean;
    out[2].values[r] = 1.0 / std::sqrt(var + attrs.number("eps", 1e-5));
    for (int64_t i = 0; i < n; ++i) {
      const double xhat = (in[0].values[r * n + i] - mean) * out[2].values[r];
      out[0].values[r * n + i] = in.size() > 1 ? xhat * in[1].values[i] + in[2].values[i] : xhat;
    }
  }
  return out;
}

/// The row's numbers k, summed over parts: stats [parts, rows, 2].
double sum_of_parts(const Tensor64& layer_norm_stats, int64_t row, int64_t k) {
  const int64_t parts = layer_norm_stats.shape[0], rows = num_elements(layer_norm_stats.shape) / parts / 2;
  double sum = 0;
  for (int64_t p = 0; p < parts; ++p) sum += layer_norm_stats.values[(p * rows + row) * 2 + k];
  return sum;
}

/// dy * gamma and xhat of element i: in is dy, x, mean, rstd(, gamma).
struct Terms {
  double g, xhat;

  static Terms of(const Inputs& in, size_t with_gamma, int64_t i) {
    const int64_t n = in[0].shape.back();
    const double gamma = in.size() >= with_gamma ? in[4].values[i % n] : 1.0;
    return {in[0].values[i] * gamma, (in[1].values[i] - in[2].values[i / n]) * in[3].values[i / n]};
  }
};

Shape two_per_row(Shape shape) {
  shape.back() = 2;
  return shape;
}

Outputs layer_norm_stats(const NaiveCall& call) {
  const Tensor64& x = call.in[0];
  const int64_t n = x.shape.back();
  Tensor64 out = zeros(two_per_row(x.shape));
  for (int64_t i = 0; i < num_elements(x.shape); ++i) out.values[i / n * 2] += x.values[i] / static_cast<double>(n);
  for (int64_t i = 0; i < num_elements(x.shape); ++i)
    out.values[i / n * 2 + 1] += std::pow(x.values[i] - out.values[i / n * 2], 2);
  return {out};
}

/// Normalizes with the given statistics. That these are the statistics of x is tested by the rows of the ops, which run
/// under every sharding.
Outputs layer_norm_apply(const NaiveCall& call) {
  const Tensor64 &x = call.in[0], &of_parts = call.in.back();
  const int64_t n = x.shape.back(), rows = num_elements(x.shape) / n, parts = of_parts.shape[0];
  const Shape leading(x.shape.begin(), x.shape.end() - 1);
  Outputs out{x, zeros(leading), zeros(leading)};
  for (int64_t r = 0; r < rows; ++r) {
    const double mean = sum_of_parts(of_parts, r, 0) / static_cast<double>(parts);
    double squares = sum_of_parts(of_parts, r, 1);
    for (int64_t p = 0; p < parts; ++p)
      squares += static_cast<double>(n) * std::pow(of_parts.values[(p * rows + r) * 2] - mean, 2);
    out[1].values[r] = mean;
    out[2].values[r] = 1.0 / std::sqrt(squares / static_cast<double>(n * parts) + call.attrs.number("eps"));
    for (int64_t i = r * n; i < (r + 1) * n; ++i) {
      const double xhat = (x.values[i] - mean) * out[2].values[r];
      out[0].values[i] = call.in.size() > 2 ? xhat * call.in[1].values[i - r * n] + call.in[2].values[i - r * n] : xhat;
    }
  }
  return out;
}

Outputs layer_norm_grad_stats(const NaiveCall& call) {
  const int64_t n = call.in[0].shape.back();
  Tensor64 out = zeros(two_per_row(call.in[0].shape));
  for (int64_t i = 0; i < num_elements(call.in[0].shape); ++i) {
    const Terms terms = Terms::of(call.in, 5, i);
    out.values[i / n * 2] += terms.g;
    out.values[i / n * 2 + 1] += terms.g * terms.xhat;
  }
  return {out};
}

Outputs layer_norm_grad_apply(const NaiveCall& call) {
  const Tensor64& of_parts = call.in.back();
  const int64_t n = call.in[0].shape.back();
  const auto whole = static_cast<double>(n * of_parts.shape[0]);
  Tensor64 dx = call.in[0];
  for (int64_t i = 0; i < num_elements(dx.shape); ++i) {
    const Terms terms = Terms::of(call.in, 6, i);
    const double of_g = sum_of_parts(of_parts, i / n, 0) / whole, of_product = sum_of_parts(of_parts, i / n, 1) / whole;
    dx.values[i] = call.in[3].values[i / n] * (terms.g - of_g - terms.xhat * of_product);
  }
  return {dx};
}

/// dx (+ a residual)(, dgamma, dbeta): in is dy, x, mean, rstd(, gamma)(, residual).
Outputs layer_norm_grad(const NaiveCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  Inputs in = call.in;
  if (epilogue.residual) in.pop_back();
  const int64_t n = in[0].shape.back();
  Tensor64 dx = in[0], dgamma = zeros({n}), dbeta = zeros({n});
  std::vector<double> of_g(in[2].values.size()), of_product(in[2].values.size());
  for (int64_t i = 0; i < num_elements(dx.shape); ++i) {
    const Terms terms = Terms::of(in, 5, i);
    of_g[i / n] += terms.g / static_cast<double>(n);
    of_product[i / n] += terms.g * terms.xhat / static_cast<double>(n);
    dgamma.values[i % n] += in[0].values[i] * terms.xhat;
    dbeta.values[i % n] += in[0].values[i];
  }
  for (int64_t i = 0; i < num_elements(dx.shape); ++i) {
    const Terms terms = Terms::of(in, 5, i);
    dx.values[i] = in[3].values[i / n] * (terms.g - of_g[i / n] - terms.xhat * of_product[i / n]);
    if (epilogue.residual) dx.values[i] += call.in.back().values[i];
  }
  return epilogue.parameter_grads ? Outputs{dx, dgamma, dbeta} : Outputs{dx};
}

/// Adds gradients with fused ops: many and few rows; rows that fill their threads or not, that consist of whole packs
/// or not, and that are longer than a block of threads covers.
void layer_norm_add_gradients(std::vector<KernelCase>& calls) {
  using Fill = CaseOperand::Fill;
  for (const Shape& shape :
       {Shape{5, 7}, Shape{1, 8}, Shape{37, 24}, Shape{3, 2, 264}, Shape{517, 96}, Shape{9, 3200}, Shape{3, 8200}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const bool affine : {true, false}) {
        for (const Epilogue& epilogue : {Epilogue{.residual = true}, Epilogue{.parameter_grads = true},
                                         Epilogue{.residual = true, .parameter_grads = true}}) {
          const Shape rows(shape.begin(), shape.end() - 1);
          const CaseOperand x{.shape = shape, .dtype = type}, row{rows, Fill::positive};
          KernelCase call{"layer_norm_grad", {x, x, row, row}, {unwritten(shape, type)}, {{"eps", 1e-5}}};
          if (affine) call.in.push_back({.shape = {shape.back()}, .dtype = type});
          if (epilogue.residual) call.in.push_back(x);
          if (epilogue.parameter_grads) {
            CaseOperand sums{.shape = {shape.back()}, .accumulate = affine};
            if (!affine) sums.fill = Fill::unwritten;
            call.out.insert(call.out.end(), 2, sums);
          }
          set_epilogue(call.attrs, epilogue);
          call.tolerance = type == DType::bf16 ? 1e-2 : 2e-5;
          call.f32_on_cpu = type == DType::bf16;
          calls.push_back(std::move(call));
        }
      }
    }
  }
}

/// Cases with two and three shards per row, of odd sizes, single elements and long shards, with and without gamma and
/// beta.
std::vector<KernelCase> layer_norm_kernels() {
  std::vector<KernelCase> calls;
  using Fill = CaseOperand::Fill;
  for (const Shape& shape : {Shape{5, 7}, Shape{4, 1}, Shape{2, 3, 37}, Shape{3, 1024}, Shape{3, 5001}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const bool affine : {true, false}) {
        const bool bf16 = type == DType::bf16;
        const Shape rows(shape.begin(), shape.end() - 1);
        const CaseOperand x{.shape = shape, .dtype = type},
            y = unwritten(shape, type), side{.shape = {shape.back()}, .dtype = type}, row{rows, Fill::positive};
        const auto stats_of = [&](int64_t parts) {
          CaseOperand operand{two_per_row(shape), Fill::positive};
          operand.shape.insert(operand.shape.begin(), parts);
          return operand;
        };
        const auto add = [&](const char* kernel, std::vector<CaseOperand> in, std::vector<CaseOperand> out) {
          calls.push_back({kernel, std::move(in), std::move(out), {{"eps", 1e-5}}, bf16 ? 1e-2 : 5e-6});
          calls.back().f32_on_cpu = bf16;
        };
        const auto with = [&](std::vector<CaseOperand> in, const std::vector<CaseOperand>& sides,
                              const std::vector<CaseOperand>& last) {
          if (affine) in.insert(in.end(), sides.begin(), sides.end());
          in.insert(in.end(), last.begin(), last.end());
          return in;
        };
        if (affine) add("layer_norm_stats", {x}, {unwritten(two_per_row(shape))});
        add("layer_norm_apply", with({x}, {side, side}, {stats_of(2)}), {y, unwritten(rows), unwritten(rows)});
        add("layer_norm_grad_stats", with({x, x, row, row}, {side}, {}), {unwritten(two_per_row(shape))});
        add("layer_norm_grad_apply", with({x, x, row, row}, {side}, {stats_of(3)}), {y});
      }
    }
  }
  layer_norm_add_gradients(calls);
  return calls;
}

}  // namespace

extern const OpCases layer_norm_cases = {
    .rows = {{"layer_norm", {{{6, 7}}, {{7}}, {{7}}}, {{"eps", 1e-5}}, {{6, 7}, {6}, {6}}, 5e-6},
             {"layer_norm", {{{4, 3, 37}}, {{37}}, {{37}}}, {{"eps", 1e-5}}, {{4, 3, 37}, {4, 3}, {4, 3}}, 5e-6},
             {"layer_norm", {{{12, 8}}}, {{"eps", 1e-3}}, {{12, 8}, {12}, {12}}, 5e-6},
             {"layer_norm", {{{2, 3, 36}}, {{36}}, {{36}}}, {{"eps", 1e-5}}, {{2, 3, 36}, {2, 3}, {2, 3}}, 5e-6}},
    .references = {{"layer_norm", layer_norm}},
    .rules = {{{"layer_norm", {{{2, 3, 4}}}}, "abd->abd,ab,ab", "", {{2, 3, 4}, {2, 3}, {2, 3}}, "d"},
              {{"layer_norm", {{{2, 4}}, {{4}}, {{4}}}}, "ad,d,d->ad,a,a", "", {{2, 4}, {2}, {2}}, "d"}},
    .gradients = {{{"layer_norm", {{{2, 4}}}}, {"layer_norm_grad ad,ad,a,a->ad"}, "ranks exchange its sums over d"},
                  {{"layer_norm", {{{2, 4}}, {{4}}, {{4}}}},
                   {"layer_norm_param_grad ad,ad,a,a->d,d sums a sums a", "layer_norm_grad ad,ad,a,a,d->ad"},
                   "gamma and beta are used in every row a"}},
    .shape_errors = {{{"layer_norm", {{{2, 3}}, {{2}}, {{3}}}}, "layer_norm: the weight is [2], expected [3]"}},
    .kernels = layer_norm_kernels(),
    .kernel_references = {{"layer_norm_grad", layer_norm_grad},
                          {"layer_norm_stats", layer_norm_stats},
                          {"layer_norm_apply", layer_norm_apply},
                          {"layer_norm_grad_stats", layer_norm_grad_stats},
                          {"layer_norm_grad_apply", layer_norm_grad_apply}},
    .layers = {{"layer_norm", "", {8, 12}},
               {"layer_norm", ", affine: false", {8, 12}},
               {"layer_norm", ", dims: 2", {8, 3, 4, 5}, false, {3, 4, 5}},
               {"layer_norm", ", dims: 3, affine: false", {8, 3, 4, 5}, false, {3, 4, 5}}},
};

}  // namespace trainctl
