// Cases of rms_norm: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The factor of element i: `at` is the index of gamma among the inputs, if it is there.
double scale_of(const Inputs& in, bool given, size_t at, int64_t i, const Attrs& attrs) {
  return given ? in[at].values[i] + attrs.number("offset", 0) : 1.0;
}

Outputs rms_norm(const Inputs& in, const Attrs& attrs) {
  const int64_t n = in[0].shape.back(), rows = num_elements(in[0].shape) / n;
  Outputs out{in[0], zeros(Shape(in[0].shape.begin(), in[0].shape.end() - 1))};
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += in[0].values[r * n + i] * in[0].values[r * n + i];
    const double rstd = out[1].values[r] =
        1.0 / std::sqrt(squares / static_cast<double>(n) + attrs.number("eps", 1e-5));
    for (int64_t i = 0; i < n; ++i)
      out[0].values[r * n + i] = in[0].values[r * n + i] * rstd * scale_of(in, in.size() > 1, 1, i, attrs);
  }
  return out;
}

Shape one_per_row(Shape shape) {
  shape.back() = 1;
  return shape;
}

/// The mean over all parts' elements: stats [parts, rows, 1], parts of n elements.
double mean_of_parts(const Tensor64& rms_norm_stats, int64_t row, int64_t n) {
  const int64_t parts = rms_norm_stats.shape[0], rows = num_elements(rms_norm_stats.shape) / parts;
  double sum = 0;
  for (int64_t p = 0; p < parts; ++p) sum += rms_norm_stats.values[p * rows + row];
  return sum / static_cast<double>(parts * n);
}

Outputs rms_norm_stats(const NaiveCall& call) {
  const Tensor64& x = call.in[0];
  Tensor64 out = zeros(one_per_row(x.shape));
  for (int64_t i = 0; i < num_elements(x.shape); ++i) out.values[i / x.shape.back()] += x.values[i] * x.values[i];
  return {out};
}

Outputs rms_norm_apply(const NaiveCall& call) {
  const Tensor64& x = call.in[0];
  const int64_t n = x.shape.back();
  Outputs out{x, zeros(Shape(x.shape.begin(), x.shape.end() - 1))};
  for (int64_t i = 0; i < num_elements(x.shape); ++i) {
    out[1].values[i / n] = 1.0 / std::sqrt(mean_of_parts(call.in.back(), i / n, n) + call.attrs.number("eps"));
    out[0].values[i] *= out[1].values[i / n] * scale_of(call.in, call.in.size() > 2, 1, i % n, call.attrs);
  }
  return out;
}

/// dy * gamma of element i: in is dy, x, rstd(, gamma).
double g_of(const NaiveCall& call, size_t with_gamma, int64_t i) {
  const Inputs& in = call.in;
  return in[0].values[i] * scale_of(in, in.size() >= with_gamma, 3, i % in[0].shape.back(), call.attrs);
}

Outputs rms_norm_grad_stats(const NaiveCall& call) {
  const int64_t n = call.in[0].shape.back();
  Tensor64 out = zeros(one_per_row(call.in[0].shape));
  for (int64_t i = 0; i < num_elements(call.in[0].shape); ++i)
    out.values[i / n] += g_of(call, 4, i) * call.in[1].values[i] * call.in[2].values[i / n];
  return {out};
}

Outputs rms_norm_grad_apply(const NaiveCall& call) {
  const int64_t n = call.in[0].shape.back();
  Tensor64 dx = call.in[0];
  for (int64_t i = 0; i < num_elements(dx.shape); ++i) {
    const double rstd = call.in[2].values[i / n], xhat = call.in[1].values[i] * rstd;
    dx.values[i] = rstd * (g_of(call, 5, i) - xhat * mean_of_parts(call.in.back(), i / n, n));
  }
  return {dx};
}

/// dx (+ a residual)(, dgamma): in is dy, x, rstd(, gamma)(, residual).
Outputs rms_norm_grad(const NaiveCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  Inputs in = call.in;
  if (epilogue.residual) in.pop_back();
  const int64_t n = in[0].shape.back();
  const auto g = [&](int64_t i) { return in[0].values[i] * scale_of(in, in.size() > 3, 3, i % n, call.attrs); };
  const auto xhat = [&](int64_t i) { return in[1].values[i] * in[2].values[i / n]; };
  Tensor64 dx = in[0], dgamma = zeros({n});
  std::vector<double> along(in[2].values.size());
  for (int64_t i = 0; i < num_elements(dx.shape); ++i) {
    along[i / n] += g(i) * xhat(i) / static_cast<double>(n);
    dgamma.values[i % n] += in[0].values[i] * xhat(i);
  }
  for (int64_t i = 0; i < num_elements(dx.shape); ++i) {
    dx.values[i] = in[2].values[i / n] * (g(i) - xhat(i) * along[i / n]);
    if (epilogue.residual) dx.values[i] += call.in.back().values[i];
  }
  return epilogue.parameter_grads ? Outputs{dx, dgamma} : Outputs{dx};
}

/// Adds gradients with fused ops: many and few rows; rows that fill their threads or not, that consist of whole packs
/// or not, and that are longer than a block of threads covers.
void rms_norm_add_gradients(std::vector<KernelCase>& calls) {
  using Fill = CaseOperand::Fill;
  for (const Shape& shape :
       {Shape{5, 7}, Shape{1, 8}, Shape{37, 24}, Shape{3, 2, 264}, Shape{517, 96}, Shape{9, 3200}, Shape{3, 8200}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const bool affine : {true, false}) {
        for (const Epilogue& epilogue : {Epilogue{.residual = true}, Epilogue{.parameter_grads = true},
                                         Epilogue{.residual = true, .parameter_grads = true}}) {
          const Shape rows(shape.begin(), shape.end() - 1);
          const CaseOperand x{.shape = shape, .dtype = type}, row{rows, Fill::positive};
          KernelCase call{"rms_norm_grad", {x, x, row}, {unwritten(shape, type)}, {{"eps", 1e-5}}};
          if (affine && epilogue.residual) call.attrs.set("offset", 1.0);
          if (affine) call.in.push_back({.shape = {shape.back()}, .dtype = type});
          if (epilogue.residual) call.in.push_back(x);
          if (epilogue.parameter_grads) {
            CaseOperand sums{.shape = {shape.back()}, .accumulate = affine};
            if (!affine) sums.fill = Fill::unwritten;
            call.out.insert(call.out.end(), 1, sums);
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

/// Cases with two and three shards per row, of odd sizes, single elements and long shards, with and without gamma.
std::vector<KernelCase> rms_norm_kernels() {
  std::vector<KernelCase> calls;
  using Fill = CaseOperand::Fill;
  for (const Shape& shape : {Shape{5, 7}, Shape{4, 1}, Shape{2, 3, 37}, Shape{3, 1024}, Shape{3, 5001}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const bool bf16 = type == DType::bf16;
      const Shape rows(shape.begin(), shape.end() - 1);
      const CaseOperand x{.shape = shape, .dtype = type},
          y = unwritten(shape, type), gamma{.shape = {shape.back()}, .dtype = type}, row{rows, Fill::positive};
      const auto stats_of = [&](int64_t parts) {
        CaseOperand operand{one_per_row(shape), Fill::positive};
        operand.shape.insert(operand.shape.begin(), parts);
        return operand;
      };
      double offset = 0;
      const auto add = [&](const char* kernel, std::vector<CaseOperand> in, std::vector<CaseOperand> out) {
        calls.push_back(
            {kernel, std::move(in), std::move(out), {{"eps", 1e-2}, {"offset", offset}}, bf16 ? 1e-2 : 5e-6});
        calls.back().f32_on_cpu = bf16;
      };
      add("rms_norm_stats", {x}, {unwritten(one_per_row(shape))});
      add("rms_norm_apply", {x, stats_of(2)}, {y, unwritten(rows)});
      add("rms_norm_apply", {x, gamma, stats_of(3)}, {y, unwritten(rows)});
      add("rms_norm_grad_stats", {x, x, row}, {unwritten(one_per_row(shape))});
      add("rms_norm_grad_stats", {x, x, row, gamma}, {unwritten(one_per_row(shape))});
      add("rms_norm_grad_apply", {x, x, row, stats_of(2)}, {y});
      add("rms_norm_grad_apply", {x, x, row, gamma, stats_of(3)}, {y});
      offset = 1;
      add("rms_norm_apply", {x, gamma, stats_of(3)}, {y, unwritten(rows)});
      add("rms_norm_grad_stats", {x, x, row, gamma}, {unwritten(one_per_row(shape))});
      add("rms_norm_grad_apply", {x, x, row, gamma, stats_of(3)}, {y});
    }
  }
  rms_norm_add_gradients(calls);
  return calls;
}

}  // namespace

extern const OpCases rms_norm_cases = {
    .rows = {{"rms_norm", {{{6, 7}}, {{7}}}, {{"eps", 1e-5}}, {{6, 7}, {6}}, 5e-6},
             {"rms_norm", {{{4, 3, 37}}, {{37}}}, {{"eps", 1e-6}}, {{4, 3, 37}, {4, 3}}, 5e-6},
             {"rms_norm", {{{3, 1}}, {{1}}}, {{"eps", 1e-2}}, {{3, 1}, {3}}, 5e-6},
             {"rms_norm", {{{1, 130}}, {{130}}}, {{"eps", 1e-5}}, {{1, 130}, {1}}, 5e-6},
             {"rms_norm", {{{12, 8}}}, {{"eps", 1e-3}}, {{12, 8}, {12}}, 5e-6},
             {"rms_norm", {{{2, 3, 36}}, {{36}}}, {{"eps", 1e-5}}, {{2, 3, 36}, {2, 3}}, 5e-6},
             {"rms_norm", {{{6, 7}}, {{7}}}, {{"eps", 1e-5}, {"offset", 1.0}}, {{6, 7}, {6}}, 5e-6},
             {"rms_norm", {{{2, 3, 36}}, {{36}}}, {{"eps", 1e-6}, {"offset", 1.0}}, {{2, 3, 36}, {2, 3}}, 5e-6}},
    .references = {{"rms_norm", rms_norm}},
    .rules = {{{"rms_norm", {{{2, 3, 4}}}}, "abd->abd,ab", "", {{2, 3, 4}, {2, 3}}, "d"},
              {{"rms_norm", {{{2, 4}}, {{4}}}}, "ad,d->ad,a", "", {{2, 4}, {2}}, "d"}},
    .gradients = {{{"rms_norm", {{{2, 4}}}}, {"rms_norm_grad ad,ad,a->ad"}, "ranks exchange its sum over d"},
                  {{"rms_norm", {{{2, 4}}, {{4}}}},
                   {"rms_norm_param_grad ad,ad,a->d sums a", "rms_norm_grad ad,ad,a,d->ad"},
                   "gamma is used in every row a"}},
    .shape_errors = {{{"rms_norm", {{{2, 3}}, {{2}}}}, "rms_norm: the weight is [2], expected [3]"}},
    .kernels = rms_norm_kernels(),
    .kernel_references = {{"rms_norm_grad", rms_norm_grad},
                          {"rms_norm_stats", rms_norm_stats},
                          {"rms_norm_apply", rms_norm_apply},
                          {"rms_norm_grad_stats", rms_norm_grad_stats},
                          {"rms_norm_grad_apply", rms_norm_grad_apply}},
    .layers = {{"rms_norm", "", {8, 12}},
               {"rms_norm", ", affine: false, eps: 1e-6", {8, 12}},
               {"rms_norm", ", heads: 4, offset: 1", {8, 12}},
               {"rms_norm", ", heads: 3, affine: false", {8, 2, 6}, false, {2, 6}},
               {"rms_norm", ", heads: 3", {8, 1, 6}, false, {1, 6}}},
};

}  // namespace trainctl
